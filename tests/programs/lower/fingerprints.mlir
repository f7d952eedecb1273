// Every op has a function of its own, so that the text of a loop tells what is in it without any location.
#id = affine_map<(i, j) -> (i, j)>
func.func @fingerprints(%x: tensor<12x20xf32>, %w: tensor<20x28xf32>, %v: tensor<12x28xf32>) -> (tensor<12x28xf32>, tensor<12xf32>) {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<12x20xf32>
  %f = tensor.empty() : tensor<12x28xf32>
  %g = tensor.empty() : tensor<12xf32>
  %tanh = linalg.elementwise <tanh> ins(%x : tensor<12x20xf32>) outs(%e : tensor<12x20xf32>) -> tensor<12x20xf32>
  %exp = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%tanh : tensor<12x20xf32>) outs(%e : tensor<12x20xf32>) {
  ^bb0(%a: f32, %o: f32):
    %y = math.exp %a : f32
    linalg.yield %y : f32
  } -> tensor<12x20xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%f : tensor<12x28xf32>) -> tensor<12x28xf32>
  %product = linalg.matmul ins(%exp, %w : tensor<12x20xf32>, tensor<20x28xf32>) outs(%fill : tensor<12x28xf32>) -> tensor<12x28xf32>
  %abs = linalg.map { math.absf } ins(%product : tensor<12x28xf32>) outs(%f : tensor<12x28xf32>)
  %min = linalg.generic {indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%abs, %v : tensor<12x28xf32>, tensor<12x28xf32>) outs(%f : tensor<12x28xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %y = arith.minimumf %a, %b : f32
    linalg.yield %y : f32
  } -> tensor<12x28xf32>
  %start = linalg.fill ins(%zero : f32) outs(%g : tensor<12xf32>) -> tensor<12xf32>
  %max = linalg.reduce { arith.maximumf } ins(%min : tensor<12x28xf32>) outs(%start : tensor<12xf32>) dimensions = [1]
  return %min, %max : tensor<12x28xf32>, tensor<12xf32>
}
