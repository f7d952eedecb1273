// Kernels of the model's own: what they do is in an object beside it.
#processor = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {
  cpu = "x86-64-v3", cpu_features = "+avx2,+fma", native_vector_size = 32 : i64, target_triple = "x86_64-unknown-unknown-eabi-elf"
}>
#device = #hal.device.target<"local", [#processor]> : !hal.device
!data = memref<65536xf32>

module attributes {hal.device.targets = [#device]} {
  stream.executable private @own attributes {
    hal.executable.objects = #hal.executable.objects<{#processor = [#hal.executable.object<{path = "kernels.o"}>]}>
  } {
    stream.executable.export public @waving workgroups() -> (index, index, index) {
      %one = arith.constant 1 : index
      stream.return %one, %one, %one : index, index, index
    }
    stream.executable.export public @falling workgroups() -> (index, index, index) {
      %one = arith.constant 1 : index
      stream.return %one, %one, %one : index, index, index
    }
    stream.executable.export public @sharing workgroups() -> (index, index, index) {
      %one = arith.constant 1 : index
      stream.return %one, %one, %one : index, index, index
    }
    stream.executable.export public @sharing_too workgroups() -> (index, index, index) {
      %one = arith.constant 1 : index
      stream.return %one, %one, %one : index, index, index
    }
    builtin.module {
      func.func private @tm_waves(!data, !data) attributes {hal.import.static, llvm.bareptr = true}
      func.func private @tm_falls(!data, !data) attributes {hal.import.static, llvm.bareptr = true}
      func.func private @tm_shared(!data, !data) attributes {hal.import.static, llvm.bareptr = true}
      func.func @waving(%in: !stream.binding, %out: !stream.binding) {
        %zero = arith.constant 0 : index
        %from = stream.binding.subspan %in[%zero] : !stream.binding -> !data
        %to = stream.binding.subspan %out[%zero] : !stream.binding -> !data
        call @tm_waves(%from, %to) : (!data, !data) -> ()
        return
      }
      func.func @falling(%in: !stream.binding, %out: !stream.binding) {
        %zero = arith.constant 0 : index
        %from = stream.binding.subspan %in[%zero] : !stream.binding -> !data
        %to = stream.binding.subspan %out[%zero] : !stream.binding -> !data
        call @tm_falls(%from, %to) : (!data, !data) -> ()
        return
      }
      func.func @sharing(%in: !stream.binding, %out: !stream.binding) {
        %zero = arith.constant 0 : index
        %from = stream.binding.subspan %in[%zero] : !stream.binding -> !data
        %to = stream.binding.subspan %out[%zero] : !stream.binding -> !data
        call @tm_shared(%from, %to) : (!data, !data) -> ()
        return
      }
      func.func @sharing_too(%in: !stream.binding, %out: !stream.binding) {
        %zero = arith.constant 0 : index
        %from = stream.binding.subspan %in[%zero] : !stream.binding -> !data
        %to = stream.binding.subspan %out[%zero] : !stream.binding -> !data
        call @tm_shared(%from, %to) : (!data, !data) -> ()
        call @tm_shared(%to, %to) : (!data, !data) -> ()
        return
      }
    }
  }

  func.func @main(%x: tensor<65536xf32>) -> tensor<65536xf32> {
    %waves = flow.dispatch @own::@waving(%x) : (tensor<65536xf32>) -> tensor<65536xf32>
    %sum = arith.addf %waves, %x : tensor<65536xf32>
    %falls = flow.dispatch @own::@falling(%sum) : (tensor<65536xf32>) -> tensor<65536xf32>
    %shared = flow.dispatch @own::@sharing(%falls) : (tensor<65536xf32>) -> tensor<65536xf32>
    %twice = flow.dispatch @own::@sharing_too(%shared) : (tensor<65536xf32>) -> tensor<65536xf32>
    return %twice : tensor<65536xf32>
  }
}
