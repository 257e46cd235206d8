// A view owns nothing and cannot grow: whoever wants other bytes asks the owner.
// refused: has no member named .resize
#include "tensor/tensor_view.h"

int main() {
  holdfast::tensor::TensorView view;
#ifdef MISUSE
  view.resize({2, 3});
#endif
  return view.empty() ? 0 : 1;
}
