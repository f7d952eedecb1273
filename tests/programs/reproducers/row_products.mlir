// one step of decoding: a row times a matrix for each of a batch; the compiler locates its multiplications at what makes the row
// @run r --function=main --input=8x16xf32=2 --input=8x64x16xf32=1 --input=8x16xf32=3
func.func @main(%q: tensor<8x16xf32>, %k: tensor<8x64x16xf32>, %s: tensor<8x16xf32>) -> (tensor<8x64xf32>, tensor<8x16xf32>) {
  %qt = stablehlo.tanh %q : tensor<8x16xf32>
  %qs = stablehlo.multiply %qt, %s : tensor<8x16xf32>
  %sc = stablehlo.dot_general %qs, %k, batching_dims = [0] x [0], contracting_dims = [1] x [2] : (tensor<8x16xf32>, tensor<8x64x16xf32>) -> tensor<8x64xf32>
  return %sc, %qs : tensor<8x64xf32>, tensor<8x16xf32>
}
