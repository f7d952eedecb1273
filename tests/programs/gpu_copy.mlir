// A kernel whose DRAM traffic is known: it reads 1 GiB and writes 1 GiB, far more than any cache holds (tests/gpu/check.py).
func.func @main(%x: tensor<268435456xf32>) -> tensor<268435456xf32> {
  %0 = arith.negf %x : tensor<268435456xf32>
  return %0 : tensor<268435456xf32>
}
