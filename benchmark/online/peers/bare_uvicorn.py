"""A bare ASGI application: no framework, no routing, no checks. What serving costs at least."""

from __future__ import annotations

from typing import Any

from benchmark.online.peers import answered, listening, served_model


def main() -> None:
    model = served_model()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        content = answered(model, body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    listening.run(app)


if __name__ == "__main__":
    main()
