"""gRPC, the Open Inference Protocol: a front of its own over HTTP/2, without a gRPC library.

front its socket and its life service its methods, who may call them, and documents inferences
ModelInfer, ModelStreamInfer: from a message to the core, from an ending to a message codec
inference requests and answers; wire what is large in them; messages all messages status how a
call ends http2 HTTP/2 itself, per connection; call one call's messages and windows; pace what a
connection may cost others; outgoing what it writes, as far as the peer takes it; frames bytes
request_heads header fields (HPACK, by a library) and what they mean
"""
