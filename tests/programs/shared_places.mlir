// As a frontend writes them: one place for an op with its initial value, and one for two ops that both do work.
module {
  func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>, %v: tensor<4x4xf32>) -> tensor<8x4xf32> {
    %zero = arith.constant 0.0 : f32 loc("model.py":3:1)
    %e = tensor.empty() : tensor<8x4xf32> loc("model.py":3:1)
    %f = linalg.fill ins(%zero : f32) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32> loc("model.py":3:1)
    %a = linalg.matmul ins(%x, %w : tensor<8x16xf32>, tensor<16x4xf32>) outs(%f : tensor<8x4xf32>) -> tensor<8x4xf32> loc("model.py":3:1)
    %b = linalg.matmul ins(%a, %v : tensor<8x4xf32>, tensor<4x4xf32>) outs(%f : tensor<8x4xf32>) -> tensor<8x4xf32> loc("model.py":7:1)
    %c = linalg.matmul ins(%b, %v : tensor<8x4xf32>, tensor<4x4xf32>) outs(%f : tensor<8x4xf32>) -> tensor<8x4xf32> loc("model.py":7:1)
    return %c : tensor<8x4xf32> loc(unknown)
  } loc("main")
} loc(unknown)
