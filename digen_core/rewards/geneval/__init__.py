"""GenEval: are the objects there that a prompt names, as many, in their colours and places?"""
