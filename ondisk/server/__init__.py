"""Datasets over HTTP, for reading: `ondisk serve`; docs/server.md describes what is asked and answered.

    connection ── request ── admission ── endpoint ── work, in threads ── answer

`connection` limits what one connection can hold up; `admission` decides who is answered, how much is read and how long
it takes; `app` has the endpoints. They need the extra `server`, Starlette and uvicorn, which `ondisk serve` imports.
"""
