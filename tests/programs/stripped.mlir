// Some ops say where they come from, some do not, and one only seems to: line 0 is no place.
module {
  func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
    %zero = arith.constant 0.0 : f32 loc(unknown)
    %e = tensor.empty() : tensor<8x4xf32> loc("made.py":0:0)
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32> loc("made.py":12:3)
    %m = linalg.matmul ins(%x, %w : tensor<8x16xf32>, tensor<16x4xf32>) outs(%f : tensor<8x4xf32>) -> tensor<8x4xf32> loc(callsite("product"("made.py":13:7) at unknown))
    return %m : tensor<8x4xf32> loc(fused[unknown])
  } loc("main")
} loc(unknown)
