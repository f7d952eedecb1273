// what is computed twice is computed once, also where its constants or the order of its operands are written otherwise
// @run r --function=main --input=16x32xf32=2 --input=16x32xi32=3
func.func @main(%x: tensor<16x32xf32>, %i: tensor<16x32xi32>) -> (tensor<16x32xf32>, tensor<16x32xi32>) {
  %c = stablehlo.constant dense<2.5> : tensor<f32>
  %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
  %s = stablehlo.constant dense<2.5> : tensor<16x32xf32>
  %one = stablehlo.constant dense<1.0> : tensor<16x32xf32>
  %m0 = stablehlo.multiply %x, %b : tensor<16x32xf32>
  %m1 = stablehlo.multiply %s, %x : tensor<16x32xf32>
  %n = stablehlo.multiply %x, %one : tensor<16x32xf32>
  %m2 = stablehlo.multiply %n, %s : tensor<16x32xf32>
  %t0 = stablehlo.tanh %m0 : tensor<16x32xf32>
  %t1 = stablehlo.tanh %m1 : tensor<16x32xf32>
  %t2 = stablehlo.tanh %m2 : tensor<16x32xf32>
  %d = stablehlo.divide %t0, %t1 : tensor<16x32xf32>
  %e = stablehlo.add %d, %t2 : tensor<16x32xf32>
  %k = stablehlo.constant dense<5> : tensor<16x32xi32>
  %x0 = stablehlo.xor %i, %k : tensor<16x32xi32>
  %x1 = stablehlo.xor %k, %i : tensor<16x32xi32>
  %p0 = stablehlo.popcnt %x0 : tensor<16x32xi32>
  %p1 = stablehlo.popcnt %x1 : tensor<16x32xi32>
  %q = stablehlo.multiply %p0, %p1 : tensor<16x32xi32>
  return %e, %q : tensor<16x32xf32>, tensor<16x32xi32>
}
