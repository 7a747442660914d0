"""Deployment: each site keeps its data; Flower carries the messages.

protocol.py     what is in a message to a site and in its reply
worker.py       a site's side: runs client work by name on a cohort of one
memory.py       what a site remembers, durably
node.py         a site's connection to the server
link.py         the server's connection to the sites
federation.py   certificates, keys and files of a federation
commands.py     fedsaddle deploy ...
"""
