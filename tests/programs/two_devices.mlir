func.func @two(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<64x64xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>
  %xa = flow.tensor.transfer %x : tensor<64x64xf32> to #hal.device.promise<@first>
  %wa = flow.tensor.transfer %w : tensor<64x64xf32> to #hal.device.promise<@first>
  %a = linalg.matmul ins(%xa, %wa : tensor<64x64xf32>, tensor<64x64xf32>) outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
  %ab = flow.tensor.transfer %a : tensor<64x64xf32> to #hal.device.promise<@second>
  %wb = flow.tensor.transfer %w : tensor<64x64xf32> to #hal.device.promise<@second>
  %b = linalg.matmul ins(%ab, %wb : tensor<64x64xf32>, tensor<64x64xf32>) outs(%f : tensor<64x64xf32>) -> tensor<64x64xf32>
  %r = flow.tensor.transfer %b : tensor<64x64xf32> to #hal.device.promise<@first>
  return %r : tensor<64x64xf32>
}
