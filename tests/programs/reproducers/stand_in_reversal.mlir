// what a roll is lowered to has a reversal in it that it does not need; the model's own one is merged with it, and loses its location
// @run r --function=main --input=4x64x32xf32=2
func.func @main(%x: !torch.vtensor<[4,64,32],f32>) -> (!torch.vtensor<[4,64,32],f32>, !torch.vtensor<[4,64,32],f32>) {
  %i1 = torch.constant.int 1
  %i5 = torch.constant.int 5
  %l1 = torch.prim.ListConstruct %i1 : (!torch.int) -> !torch.list<int>
  %l5 = torch.prim.ListConstruct %i5 : (!torch.int) -> !torch.list<int>
  %roll = torch.aten.roll %x, %l5, %l1 : !torch.vtensor<[4,64,32],f32>, !torch.list<int>, !torch.list<int> -> !torch.vtensor<[4,64,32],f32>
  %flip = torch.aten.flip %x, %l1 : !torch.vtensor<[4,64,32],f32>, !torch.list<int> -> !torch.vtensor<[4,64,32],f32>
  %s = torch.aten.sin %flip : !torch.vtensor<[4,64,32],f32> -> !torch.vtensor<[4,64,32],f32>
  return %s, %roll : !torch.vtensor<[4,64,32],f32>, !torch.vtensor<[4,64,32],f32>
}
