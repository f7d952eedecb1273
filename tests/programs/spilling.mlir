// Two matrix products. The tile of the first has 16 x 32 sums, which are 64 registers of 8 elements where there are 16;
// that of the second has 4 x 16, which fit.
#many = #iree_codegen.compilation_info<
  lowering_config = #iree_cpu.lowering_config<
    distribution = [64, 64, 0], vector_common_parallel = [16, 32, 0], vector_reduction = [0, 0, 1]>,
  translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>
#few = #iree_codegen.compilation_info<
  lowering_config = #iree_cpu.lowering_config<
    distribution = [64, 64, 0], vector_common_parallel = [4, 16, 0], vector_reduction = [0, 0, 1]>,
  translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>
func.func @main(%a: tensor<64x64xf32>, %b: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x64xf32>
  %out = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x64xf32>) -> tensor<64x64xf32>
  %spills = linalg.matmul {compilation_info = #many}
    ins(%a, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%out : tensor<64x64xf32>) -> tensor<64x64xf32>
  %fits = linalg.matmul {compilation_info = #few}
    ins(%spills, %b : tensor<64x64xf32>, tensor<64x64xf32>) outs(%out : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %fits : tensor<64x64xf32>
}
