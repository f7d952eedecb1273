// Puts a call of a function that it brings along in place of each sum of a tensor and itself, whatever its size.
#processor = #hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {
  cpu = "x86-64-v3", cpu_features = "+avx2,+fma", native_vector_size = 32 : i64, target_triple = "x86_64-unknown-unknown-eabi-elf"
}>

module attributes {transform.with_named_sequence} {
  stream.executable private @own attributes {
    hal.executable.objects = #hal.executable.objects<{#processor = [#hal.executable.object<{path = "kernels.o"}>]}>
  } {
    stream.executable.export public @doubling workgroups(%size: index) -> (index, index, index) {
      %one = arith.constant 1 : index
      stream.return %one, %one, %one : index, index, index
    }
    builtin.module {
      func.func private @tm_doubles(memref<f32>, index, memref<f32>, index, index) attributes {
        hal.import.static, llvm.bareptr = true
      }
      func.func @doubling(%in: !stream.binding, %out: !stream.binding, %size: index) {
        %zero = arith.constant 0 : index
        %from = stream.binding.subspan %in[%zero] : !stream.binding -> memref<?xf32>{%size}
        %to = stream.binding.subspan %out[%zero] : !stream.binding -> memref<?xf32>{%size}
        %data, %at, %sizes, %strides = iree_codegen.extract_strided_metadata %from
          : memref<?xf32> -> memref<f32>, index, index, index
        %target, %target_at, %target_sizes, %target_strides = iree_codegen.extract_strided_metadata %to
          : memref<?xf32> -> memref<f32>, index, index, index
        call @tm_doubles(%data, %at, %target, %target_at, %size)
          : (memref<f32>, index, memref<f32>, index, index) -> ()
        return
      }
    }
  }

  util.func private @doubled(%x: tensor<?xf32>) -> tensor<?xf32> {
    %zero = arith.constant 0 : index
    %size = tensor.dim %x, %zero : tensor<?xf32>
    %twice = flow.dispatch @own::@doubling[%size](%x, %size) : (tensor<?xf32>{%size}, index) -> tensor<?xf32>{%size}
    util.return %twice : tensor<?xf32>
  }

  transform.named_sequence @is_doubled(%root: !transform.any_op {transform.readonly})
      -> (!transform.any_value, !transform.any_value) {
    %ins, %outs = transform.iree.match.cast_compatible_dag_from_root %root {
    ^bb0(%x: tensor<?xf32>):
      %zero = arith.constant 0 : index
      %size = tensor.dim %x, %zero : tensor<?xf32>
      %empty = tensor.empty(%size) {"match.operation_name_only"} : tensor<?xf32>
      %sum = linalg.generic {
        indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]
      } ins(%x : tensor<?xf32>) outs(%empty : tensor<?xf32>) {
      ^bb0(%element: f32, %unused: f32):
        %twice = arith.addf %element, %element : f32
        linalg.yield %twice : f32
      } -> tensor<?xf32>
    } : (!transform.any_op) -> (!transform.any_value, !transform.any_value)
    transform.yield %ins, %outs : !transform.any_value, !transform.any_value
  }

  transform.named_sequence @call(%ins: !transform.any_value {transform.readonly}, %out: !transform.any_value {transform.readonly}) {
    %root = transform.get_defining_op %out : (!transform.any_value) -> !transform.any_op
    %module = transform.util.get_nearest_symbol_table %root : (!transform.any_op) -> !transform.any_op
    %own = transform.util.import_symbol @own into %module if undefined : (!transform.any_op) -> !transform.any_op
    %doubled = transform.util.import_symbol @doubled into %module if undefined : (!transform.any_op) -> !transform.any_op
    transform.util.cast_and_call %doubled(%ins) -> %out after %root {
      transform.type_conversion.tensor.cast_shape_dynamic_dims
    } : (!transform.any_op, !transform.any_value, !transform.any_value, !transform.any_op) -> !transform.any_op
    transform.yield
  }

  transform.named_sequence @__transform_main(%module: !transform.any_op) {
    %functions = transform.structured.match ops{["util.func"]} in %module : (!transform.any_op) -> !transform.any_op
    transform.foreach %functions : !transform.any_op {
    ^bb1(%function: !transform.any_op):
      transform.foreach_match in %function @is_doubled -> @call : (!transform.any_op) -> !transform.any_op
    }
    transform.apply_dce to %module : !transform.any_op
    transform.yield
  }
}
