"""`python -m flatwalk.reference`: writes anew what follows from the engine's schemas."""

from flatwalk.reference import columns, page, types

for path, text in ((page.PATH, page.text()), (types.PATH, types.text()), (columns.PATH, columns.text())):
    path.write_text(text, encoding="utf-8")
    print(path)
