"""The server: OpenAI's HTTP interface over one engine.

A request, file by file:
    app        the routes: who may ask, what stands in the body, the answer or the stream of it
    schema     the body as pydantic reads it, and what of it the engine is told
    grammar    the form that a text must have, where one is asked for
    work       one request in the making: its texts, where each stands, and who is told
    scheduler  a thread of its own in which all texts are decoded together, over `engine.session`
    answers    events of texts as OpenAI's objects
    metrics    what Prometheus is told
"""
