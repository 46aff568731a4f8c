from .kernels import X
def test(): assert X == 1
