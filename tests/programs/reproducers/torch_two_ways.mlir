// a product with a transposed matrix, and a square, that are written in two ways each are computed once
// @run r --function=main --input=4x32xf32=2 --input=96x32xf32=1 --input=4x96xf32=3
func.func @main(%x: !torch.vtensor<[4,32],f32>, %w: !torch.vtensor<[96,32],f32>, %v: !torch.vtensor<[4,96],f32>) -> (!torch.vtensor<[4,96],f32>, !torch.vtensor<[4,96],f32>) attributes {torch.assume_strict_symbolic_shapes} {
  %none = torch.constant.none
  %int1 = torch.constant.int 1
  %t = torch.aten.t %w : !torch.vtensor<[96,32],f32> -> !torch.vtensor<[32,96],f32>
  %a = torch.aten.mm %x, %t : !torch.vtensor<[4,32],f32>, !torch.vtensor<[32,96],f32> -> !torch.vtensor<[4,96],f32>
  %b = torch.aten.linear %x, %w, %none : !torch.vtensor<[4,32],f32>, !torch.vtensor<[96,32],f32>, !torch.none -> !torch.vtensor<[4,96],f32>
  %s = torch.aten.mul.Tensor %v, %v : !torch.vtensor<[4,96],f32>, !torch.vtensor<[4,96],f32> -> !torch.vtensor<[4,96],f32>
  %q = torch.aten.square %v : !torch.vtensor<[4,96],f32> -> !torch.vtensor<[4,96],f32>
  %e = torch.aten.exp %s : !torch.vtensor<[4,96],f32> -> !torch.vtensor<[4,96],f32>
  %f = torch.aten.sub.Tensor %e, %q, %int1 : !torch.vtensor<[4,96],f32>, !torch.vtensor<[4,96],f32>, !torch.int -> !torch.vtensor<[4,96],f32>
  %g = torch.aten.div.Tensor %a, %f : !torch.vtensor<[4,96],f32>, !torch.vtensor<[4,96],f32> -> !torch.vtensor<[4,96],f32>
  %h = torch.aten.tanh %b : !torch.vtensor<[4,96],f32> -> !torch.vtensor<[4,96],f32>
  return %g, %h : !torch.vtensor<[4,96],f32>, !torch.vtensor<[4,96],f32>
}
