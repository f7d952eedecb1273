// Softmax over rows, op by op.
#row = affine_map<(i, j) -> (i)>
#all = affine_map<(i, j) -> (i, j)>
func.func @kernel(%x: memref<128x200xf32>, %largest: memref<128xf32>, %sums: memref<128xf32>, %out: memref<128x200xf32>) {
  %zero = arith.constant 0.0 : f32
  %least = arith.constant -3.0e+38 : f32
  linalg.fill ins(%least : f32) outs(%largest : memref<128xf32>)
  linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]}
    ins(%x : memref<128x200xf32>) outs(%largest : memref<128xf32>) {
  ^bb0(%value: f32, %most: f32):
    %larger = arith.maximumf %value, %most : f32
    linalg.yield %larger : f32
  }
  linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]}
    ins(%x, %largest : memref<128x200xf32>, memref<128xf32>) outs(%out : memref<128x200xf32>) {
  ^bb0(%value: f32, %most: f32, %old: f32):
    %shifted = arith.subf %value, %most : f32
    %power = math.exp %shifted : f32
    linalg.yield %power : f32
  }
  linalg.fill ins(%zero : f32) outs(%sums : memref<128xf32>)
  linalg.generic {indexing_maps = [#all, #row], iterator_types = ["parallel", "reduction"]}
    ins(%out : memref<128x200xf32>) outs(%sums : memref<128xf32>) {
  ^bb0(%value: f32, %sum: f32):
    %added = arith.addf %value, %sum : f32
    linalg.yield %added : f32
  }
  linalg.generic {indexing_maps = [#row, #all], iterator_types = ["parallel", "parallel"]}
    ins(%sums : memref<128xf32>) outs(%out : memref<128x200xf32>) {
  ^bb0(%sum: f32, %value: f32):
    %part = arith.divf %value, %sum : f32
    linalg.yield %part : f32
  }
  return
}
