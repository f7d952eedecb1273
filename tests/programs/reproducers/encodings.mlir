// kernels that bring operands into the layout of tiled products, called from several places and in a loop
func.func private @lin(%x: tensor<96x64xf32>, %w: tensor<64x64xf32>) -> tensor<96x64xf32> {
  %d = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<96x64xf32>, tensor<64x64xf32>) -> tensor<96x64xf32>
  %t = stablehlo.tanh %d : tensor<96x64xf32>
  return %t : tensor<96x64xf32>
}
func.func @main(%x: tensor<96x64xf32>, %w: tensor<64x64xf32>, %v: tensor<64x64xf32>, %n: tensor<i32>) -> tensor<96x64xf32> {
  %z = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %a = func.call @lin(%x, %w) : (tensor<96x64xf32>, tensor<64x64xf32>) -> tensor<96x64xf32>
  %b = func.call @lin(%a, %v) : (tensor<96x64xf32>, tensor<64x64xf32>) -> tensor<96x64xf32>
  %l:2 = stablehlo.while(%i = %z, %p = %b) : tensor<i32>, tensor<96x64xf32>
    cond {
    %lt = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %lt : tensor<i1>
  } do {
    %np = func.call @lin(%p, %w) : (tensor<96x64xf32>, tensor<64x64xf32>) -> tensor<96x64xf32>
    %ni = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %ni, %np : tensor<i32>, tensor<96x64xf32>
  }
  return %l#1 : tensor<96x64xf32>
}
func.func @second(%x: tensor<96x64xf32>, %w: tensor<64x64xf32>) -> tensor<96x64xf32> {
  %a = func.call @lin(%x, %w) : (tensor<96x64xf32>, tensor<64x64xf32>) -> tensor<96x64xf32>
  return %a : tensor<96x64xf32>
}
