"""What is printed and written: standard output and error, files written whole, text from outside, help."""
