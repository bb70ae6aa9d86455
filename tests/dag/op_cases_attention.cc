#include "tests/dag/op_case_maker.h"

namespace weft::dag {

void add_attention_cases(OpCaseMaker& make) {
  struct Variant {
    const char* name;
    Shape lead;
    int64_t queries, keys, inner, columns;
    bool trans_b;
    std::optional<Shape> bias, keep;
  };
  const Variant variants[] = {
      {"plain", {}, 3, 4, 2, 5, false, {}, {}},
      {"heads", {2, 3}, 4, 4, 3, 3, true, {}, {}},
      {"bias", {2, 3}, 4, 5, 3, 2, true, Shape{4, 5}, {}},
      {"bias of heads", {2, 3}, 4, 5, 3, 2, false, Shape{3, 1, 5}, {}},
      {"mask", {2, 2}, 3, 4, 2, 2, true, {}, Shape{2, 1, 1, 4}},
      {"bias and mask", {2, 2}, 3, 4, 2, 2, false, Shape{2, 1, 3, 1}, Shape{3, 4}},
  };
  for (const Variant& v : variants) {
    const auto with = [&](int64_t rows, int64_t columns) {
      Shape shape = v.lead;
      shape.push_back(rows);
      shape.push_back(columns);
      return shape;
    };
    Operands inputs{make.real(with(v.queries, v.inner)),
                    make.real(v.trans_b ? with(v.keys, v.inner) : with(v.inner, v.keys)),
                    make.real(with(v.keys, v.columns))};
    if (v.bias || v.keep) inputs.emplace_back();
    if (v.bias) inputs.back() = make.real(*v.bias);
    if (v.keep) inputs.emplace_back(make.boolean(*v.keep));
    Attributes attributes{{Attr::TransB, int64_t{v.trans_b}}, {Attr::Alpha, 0.7}};
    if (v.keep) attributes.set(Attr::Value, -2.0);
    if (v.bias) attributes.set(Attr::ZeroRows, int64_t{1});
    make.add(OpKind::Attention, v.name, inputs, attributes).no_gradient = {3};
    inputs.insert(inputs.begin(), make.real(with(v.queries, v.columns)));
    make.add(OpKind::AttentionGrad, v.name, std::move(inputs), std::move(attributes));
  }
}

}  // namespace weft::dag
