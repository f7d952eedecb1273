#processor = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {
  cpu = "x86-64-v3", cpu_features = "+avx2,+fma", native_vector_size = 32 : i64, target_triple = "x86_64-unknown-unknown-eabi-elf"
}>
#device = #hal.device.target<"local", [#processor]> : !hal.device
#same = affine_map<(d0) -> (d0)>

module attributes {hal.device.targets = [#device]} {
  func.func @main(%x: tensor<4096xf32>, %y: tensor<1048576xf32>) -> (tensor<4096xf32>, tensor<1048576xf32>) {
    %small = tensor.empty() : tensor<4096xf32>
    %few = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel"]}
        ins(%x : tensor<4096xf32>) outs(%small : tensor<4096xf32>) {
    ^bb0(%element: f32, %unused: f32):
      %twice = arith.addf %element, %element : f32
      linalg.yield %twice : f32
    } -> tensor<4096xf32>
    %large = tensor.empty() : tensor<1048576xf32>
    %many = linalg.generic {indexing_maps = [#same, #same], iterator_types = ["parallel"]}
        ins(%y : tensor<1048576xf32>) outs(%large : tensor<1048576xf32>) {
    ^bb0(%element: f32, %unused: f32):
      %twice = arith.addf %element, %element : f32
      linalg.yield %twice : f32
    } -> tensor<1048576xf32>
    return %few, %many : tensor<4096xf32>, tensor<1048576xf32>
  }
}
