#id = affine_map<(i, j) -> (i, j)>
func.func @chain(%x: tensor<32x16xf32>, %y: tensor<32x16xf32>) -> (tensor<32x16xf32>, tensor<32xf32>) {
  %c0 = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x16xf32>
  %a = linalg.elementwise <add> ins(%x, %y : tensor<32x16xf32>, tensor<32x16xf32>) outs(%e : tensor<32x16xf32>) -> tensor<32x16xf32>
  %s = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%a, %y : tensor<32x16xf32>, tensor<32x16xf32>) outs(%e : tensor<32x16xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %m = arith.mulf %p, %q : f32
    linalg.yield %m : f32
  } -> tensor<32x16xf32>
  %t = linalg.elementwise <tanh> ins(%s : tensor<32x16xf32>) outs(%e : tensor<32x16xf32>) -> tensor<32x16xf32>
  %r0 = tensor.empty() : tensor<32xf32>
  %r1 = linalg.fill ins(%c0 : f32) outs(%r0 : tensor<32xf32>) -> tensor<32xf32>
  %r = linalg.reduce { arith.addf } ins(%t : tensor<32x16xf32>) outs(%r1 : tensor<32xf32>) dimensions = [1]
  return %t, %r : tensor<32x16xf32>, tensor<32xf32>
}
