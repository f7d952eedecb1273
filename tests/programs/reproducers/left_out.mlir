// of what is put together only a part is taken: the kernel of the rest is compiled and never called
// @run r --function=main --input=230x310xf32=2 --input=230x310xf32=1
func.func @main(%f: tensor<230x310xf32>, %g: tensor<230x310xf32>) -> tensor<230x310xf32> {
  %p = stablehlo.exponential %f : tensor<230x310xf32>
  %q = stablehlo.tanh %g : tensor<230x310xf32>
  %cc = stablehlo.concatenate %p, %q, dim = 0 : (tensor<230x310xf32>, tensor<230x310xf32>) -> tensor<460x310xf32>
  %sl = stablehlo.slice %cc [0:230, 0:310] : (tensor<460x310xf32>) -> tensor<230x310xf32>
  return %sl : tensor<230x310xf32>
}
