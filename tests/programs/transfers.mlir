func.func @filled(%x: tensor<1024xf32>) -> (tensor<1024xf32>, tensor<4096xf32>) {
  %one = arith.constant 1.0 : f32
  %empty = tensor.empty() : tensor<4096xf32>
  %a = linalg.fill ins(%one : f32) outs(%empty : tensor<4096xf32>) -> tensor<4096xf32>  // A
  %b = math.exp %x : tensor<1024xf32>  // B
  return %b, %a : tensor<1024xf32>, tensor<4096xf32>
}

func.func @alone() -> tensor<4096xf32> {
  %one = arith.constant 2.0 : f32
  %empty = tensor.empty() : tensor<4096xf32>
  %c = linalg.fill ins(%one : f32) outs(%empty : tensor<4096xf32>) -> tensor<4096xf32>  // C
  return %c : tensor<4096xf32>
}

func.func @copied(%x: tensor<64x64xf32>, %row: tensor<1x64xf32>, %at: i32) -> tensor<64x64xf32> {
  %place = arith.index_cast %at : i32 to index
  %d = tensor.insert_slice %row into %x[%place, 0] [1, 64] [1, 1] : tensor<1x64xf32> into tensor<64x64xf32>  // D
  return %d : tensor<64x64xf32>
}

func.func @cut(%x: tensor<64x64xf32>, %at: i32) -> tensor<1x64xf32> {
  %place = arith.index_cast %at : i32 to index
  %e = tensor.extract_slice %x[%place, 0] [1, 64] [1, 1] : tensor<64x64xf32> to tensor<1x64xf32>  // E
  return %e : tensor<1x64xf32>
}
