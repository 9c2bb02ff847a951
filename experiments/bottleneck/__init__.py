"""The softmax bottleneck on Dirichlet targets: how well can a head of dimension D match M words?"""
