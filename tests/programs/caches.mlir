// Kernels whose cache misses are known beforehand: one line of cache holds 16 floats.

// Reads one float of each row, a row being two lines of cache: every read misses.
func.func @misses(%a: tensor<32768x32xf32>) -> tensor<32768xf32> {
  %column = tensor.extract_slice %a[0, 3] [32768, 1] [1, 1] : tensor<32768x32xf32> to tensor<32768xf32>
  %e = tensor.empty() : tensor<32768xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%column : tensor<32768xf32>) outs(%e : tensor<32768xf32>) {
    ^bb0(%x: f32, %o: f32):
      %y = arith.mulf %x, %x : f32
      linalg.yield %y : f32
  } -> tensor<32768xf32>
  return %r : tensor<32768xf32>
}

// Reads a table that fits into the first-level cache over and over: only the first reads miss.
func.func @hits(%a: tensor<512xf32>, %table: tensor<1024xf32>) -> tensor<512xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<512xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<512xf32>) -> tensor<512xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%a, %table : tensor<512xf32>, tensor<1024xf32>) outs(%f : tensor<512xf32>) {
    ^bb0(%x: f32, %t: f32, %o: f32):
      %m = arith.maximumf %x, %t : f32
      %s = arith.addf %m, %o : f32
      linalg.yield %s : f32
  } -> tensor<512xf32>
  return %r : tensor<512xf32>
}

// One kernel: rows are summed up, each read once, in order; then a column is added, whose every read misses.
func.func @both(%a: tensor<16384x64xf32>, %b: tensor<16384x32xf32>) -> tensor<16384xf32> {
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<16384xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<16384xf32>) -> tensor<16384xf32>
  %sums = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
      ins(%a : tensor<16384x64xf32>) outs(%f : tensor<16384xf32>) {
    ^bb0(%x: f32, %o: f32):
      %s = arith.addf %x, %o : f32
      linalg.yield %s : f32
  } -> tensor<16384xf32>
  %column = tensor.extract_slice %b[0, 3] [16384, 1] [1, 1] : tensor<16384x32xf32> to tensor<16384xf32>
  %total = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}
      ins(%sums, %column : tensor<16384xf32>, tensor<16384xf32>) outs(%e : tensor<16384xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
  } -> tensor<16384xf32>
  return %total : tensor<16384xf32>
}
