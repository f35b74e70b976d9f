"""What speaks a protocol: who may ask, what is asked, and what is answered.

gateway        the routes of HTTP; v2, v2_apps, v2_documents, v2_tensors the Open Inference Protocol
inferences     one inference, from exchange to response
http           HTTP/1.1 itself; http_messages what it hands to the routes
encodings      gzip and deflate
access         tokens, loopback, origins; admin the owner's requests
prometheus     /metrics
"""
