"""A handler of FastAPI on Uvicorn, in the quickest way that it has: asynchronous, without a model of the body, with orjson."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from benchmark.online.peers import PATH, answered, listening, served_model


def main() -> None:
    model, app = served_model(), FastAPI()

    async def infer(request: Request) -> Response:
        return Response(answered(model, await request.body()), media_type="application/json")

    # The names in annotations of a function inside another are not found by FastAPI as texts.
    infer.__annotations__ = {"request": Request, "return": Response}
    app.post(PATH, response_model=None)(infer)
    listening.run(app)


if __name__ == "__main__":
    main()
