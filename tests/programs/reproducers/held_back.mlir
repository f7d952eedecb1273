// what stands behind a barrier is not computed by the compiler, and the barrier itself is no constant
// @run r --function=main --input=8x32xf32=2
util.global private @w : tensor<32x32xf32>
util.initializer {
  %c = arith.constant dense<1.5> : tensor<32x32xf32>
  %b = util.optimization_barrier %c : tensor<32x32xf32>
  %t = stablehlo.tanh %b : tensor<32x32xf32>
  util.global.store %t, @w : tensor<32x32xf32>
  util.return
}
func.func @main(%x: tensor<8x32xf32>) -> tensor<8x32xf32> {
  %w = util.global.load @w : tensor<32x32xf32>
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
  %u = util.unfoldable_constant dense<0.75> : tensor<32x8xf32>
  %v = stablehlo.transpose %u, dims = [1, 0] : (tensor<32x8xf32>) -> tensor<8x32xf32>
  %k = stablehlo.constant dense<0.5> : tensor<8x32xf32>
  %o = stablehlo.optimization_barrier %k : tensor<8x32xf32>
  %e = stablehlo.exponential %o : tensor<8x32xf32>
  %s = stablehlo.divide %d, %v : tensor<8x32xf32>
  %a = stablehlo.subtract %s, %e : tensor<8x32xf32>
  return %a : tensor<8x32xf32>
}
