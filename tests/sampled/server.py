"""A server under load: a thread of it answers requests over a socket from a table in memory."""

import random
import socket
import threading

REQUESTS = 25_000
table = {number: str(number) * 8 for number in range(60_000)}
listener = socket.create_server(("127.0.0.1", 0))


def serve() -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            key = int(line)
            table[key % 60_000] = table.get(key, "none")
            stream.write(table[key % 60_000].encode() + b"\n")
            stream.flush()


server = threading.Thread(target=serve)
server.start()
draw, read = random.Random(5), 0
with socket.create_connection(listener.getsockname()) as client, client.makefile("rwb") as stream:
    for _ in range(REQUESTS):
        stream.write(b"%d\n" % draw.randrange(80_000))
        stream.flush()
        read += len(stream.readline())
server.join()
print(read)
