"""Deployment: each site keeps its data; Flower carries the messages (`docs/deployment.md`).

    protocol.py     what is in a message to a site and in its reply
    worker.py       a site's side: runs client work by name on a cohort of one
    memory.py       what a site remembers, durably
    program.py      processes: how they start and end, Flower's two among them
    knock.py        whether the server knows a site, in plain words
    node.py         a site: Flower's SuperNode, and this process as its ClientApp
    link.py         the server's connection to the sites
    post.py         messages to sites and their replies: asked again, waited for, left out
    replies.py      which replies are used, and why others are refused
    measured.py     what the sites have measured, as one evaluation
    drive.py        a run from the server's side: meet, agree, train, resume
    home.py         certificates, keys and files of a federation
    app.py          as a Flower app, for those who run Flower already
    commands.py     fedsaddle deploy ...

A round, in the order in which it is read: `algorithms/codasca.py` calls `clients.mean`; `clients.py` asks the engine and
counts the numbers sent (`messages.py`; `train.py` makes bytes of them, four each); `engines/flower.py` (`_run`) makes a
message for each site; `post.py` sends them, waits and asks again; Flower carries them; at the site `node.py` takes the task
and `worker.py` (`Session.work`) runs the same file's client work, writes its memory and answers; `replies.py` says which
answers count, and the engine hands their rows to `clients.mean`.

The engine is `engines/flower.py`, the form of messages `wire.py`, a site's data `sites.py`, what is said
of them at set-up `agreement.py`.
"""
