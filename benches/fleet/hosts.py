"""Answers scrapes for many simulated hosts: hosts.py RECORDING PORT. The host is the first part of the path.

Each scrape of a host gets the next recorded one. Hosts begin at different places of the recording.
"""

import asyncio
import functools
import gzip
import sys

from recording import load

# hosts that begin at the same place share answers, which makes this program cheap
PLACES = 40


class Hosts:
    def __init__(self, host):
        self.host, self.scrapes = host, {}
        self.answer = functools.lru_cache(maxsize=4 * PLACES)(self.make_answer)

    def make_answer(self, n):
        body = gzip.compress(self.host.text(n).encode(), 1)
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        return f"{head}Content-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def next_answer(self, host):
        n = self.scrapes.get(host, host % PLACES)
        self.scrapes[host] = n + 1
        return self.answer(n)

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1]
                writer.write(self.next_answer(int(path.split(b"/")[1])))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def main(path, port):
    hosts = Hosts(load(path))
    server = await asyncio.start_server(hosts.serve, "127.0.0.1", int(port))
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


asyncio.run(main(*sys.argv[1:]))
