"""Workers on other machines: one agent per node, and the gateway's end of it.

frames       what is said between gateway and agents, and from agent to agent
connection   a socket that carries frames, and tensors straight between it and the arena
handshake    who may speak at all: a secret, proven by both sides; TLS
strangers    who has proved nothing yet: how many at a time, and who gives way
files        model files by hash: what the gateway gives, what an agent keeps
session      an agent's part for one plan of one gateway: arena, workers, tensors on their way
peers        the way to other agents: tensors that leave
incoming     tensors that other agents send: where they belong, and whether they are wanted
agent        the process of a node: listens, opens sessions, ends them
clock        how far an agent's clock is behind ours, from round trips
link         the gateway's end of one session: connects, and connects again
orders       what it has ordered, and for how long each batch has been with its worker
link_ends    whom it tells of workers and tensors
host         `Host` and `WorkerHandle` over a link
transport    `Transport` over the links and this machine's arena
paths        which nodes reach which, and who is left out where one does not
cluster      where the agents of a plan's nodes are; all links of a plan

A session's life, and what makes a lost one harmless, is told in `session`.
"""
