"""Fronts: each speaks one protocol, and translates it to the protocol core and back.

base           what a front is, and what it is made from; table: one row per front
http_exchange  one request; http_server what connections share; seats who may hold them,
               seat_limits how many
peer_user      whose a connection is; arrivals when its bytes reached the machine
access         who may ask, under every protocol: tokens, loopback, origins

HTTP, the Open Inference Protocol:
http_front     its socket and its life; gateway its paths
http           HTTP/1.1 itself; http_messages its responses and limits; encodings gzip and deflate
inferences     `/infer`: from an exchange to the core, from an ending to a response
v2, v2_apps    inference requests and answers; v2_tensors JSON tensors; v2_documents metadata
admin          `headrace migrate`; prometheus /metrics

tcp_front is what HTTP and gRPC have in common, handshake their TLS, tls_failures what is told where
that fails; guard applies access to one request; grpc is a room.
"""
