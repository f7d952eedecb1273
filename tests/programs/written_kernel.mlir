module {
  func.func @f(%a: tensor<128x64xf32>, %n: index) -> tensor<128x64xf32> {
    %c64 = arith.constant 64 : index
    %0 = flow.dispatch.workgroups[%c64](%a) : (tensor<128x64xf32>) -> tensor<128x64xf32> =
      (%la: !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x64xf32>>, %o: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x64xf32>>) {
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %c128 = arith.constant 128 : index
      %id = flow.dispatch.workgroup.id[0] : index
      %count = flow.dispatch.workgroup.count[0] : index
      %begin = arith.muli %id, %c2 : index
      %step = affine.apply affine_map<()[s0] -> (s0 * 2)>()[%count]
      scf.for %i = %begin to %c128 step %step {
        %x = iree_tensor_ext.dispatch.tensor.load %la, offsets = [%i, 0], sizes = [2, 64], strides = [1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<128x64xf32>> -> tensor<2x64xf32>
        %e = tensor.empty() : tensor<2x64xf32>
        %m = linalg.elementwise <exp> ins(%x : tensor<2x64xf32>) outs(%e : tensor<2x64xf32>) -> tensor<2x64xf32>
        iree_tensor_ext.dispatch.tensor.store %m, %o, offsets = [%i, 0], sizes = [2, 64], strides = [1, 1] : tensor<2x64xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<128x64xf32>>
      }
      flow.return
    } count(%w: index) -> (index, index, index) {
      %c1 = arith.constant 1 : index
      flow.return %w, %c1, %c1 : index, index, index
    }
    return %0 : tensor<128x64xf32>
  }
}
