// A visitor out of lambdas, for std::visit:
//
//   std::visit(Overloaded{[](const A& a) {...}, [](const B& b) {...}}, variant);
#pragma once

namespace weft {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace weft
