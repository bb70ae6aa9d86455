// Cases of the recurrent family, of scattering and of sorting.
#include "tests/dag/op_case_maker.h"

namespace weft::dag {
namespace {

constexpr int64_t kSteps = 4, kBatch = 3, kHidden = 2;
const Shape kSequence{kSteps, kBatch, kHidden}, kState{kBatch, kHidden};

Shape gates(int64_t count) { return {kSteps, kBatch, count * kHidden}; }
Tensor recurrent_weights(OpCaseMaker& make, int64_t count) { return make.real({count * kHidden, kHidden}); }
// One row takes no step, one all (and claims more), one some.
Tensor lengths(DType dtype = DType::I32) {
  return from_int64s({dtype, {kBatch}}, std::vector<int64_t>{2, 0, 9});
}

void add_lstm_cases(OpCaseMaker& make) {
  const std::optional<Tensor> none;
  for (const int64_t reverse : {0, 1}) {
    const std::string way = reverse ? "reverse" : "forward";
    const Attributes attributes{{Attr::Reverse, reverse}};
    const Tensor r = recurrent_weights(make, 4);
    make.add(OpKind::Lstm, way, {make.real(gates(4)), r}, attributes);
    make.add(OpKind::Lstm, way + " from a state",
             {make.real(gates(4)), r, make.real(kState), make.real(kState)}, attributes);
    make.add(OpKind::Lstm, way + " lengths", {make.real(gates(4)), r, make.real(kState), none, lengths()},
             attributes);
    make.add(OpKind::LstmGrad, way,
             {r, make.real(gates(4), 0.1, 0.9), make.real(kSequence), make.real(kSequence), make.real(kState),
              make.real(kState), make.real(kState), lengths(DType::I64)},
             attributes);
    make.add(
        OpKind::LstmGrad, way + " of the last state",
        {r, make.real(gates(4), 0.1, 0.9), make.real(kSequence), none, make.real(kState), none, none, none},
        attributes);
  }
  make.add(OpKind::Lstm, "wide", {make.real({3, 17, 4 * 37}), make.real({4 * 37, 37}, -0.2, 0.2)}).smooth =
      false;
  make.add(OpKind::Lstm, "no steps", {make.real({0, 2, 12}), make.real({12, 3}), make.real({2, 3})});
}

void add_gru_cases(OpCaseMaker& make) {
  const std::optional<Tensor> none;
  for (const int64_t linear : {0, 1})
    for (const int64_t reverse : {0, 1}) {
      const std::string way = std::string(linear ? "linear " : "") + (reverse ? "reverse" : "forward");
      const Attributes attributes{{Attr::Reverse, reverse}, {Attr::LinearBeforeReset, linear}};
      const Tensor r = recurrent_weights(make, 3);
      const std::optional<Tensor> bias = linear ? std::optional(make.real({kHidden})) : none;
      make.add(OpKind::Gru, way, {make.real(gates(3)), r}, attributes);
      make.add(OpKind::Gru, way + " from a state", {make.real(gates(3)), r, make.real(kState), bias},
               attributes);
      make.add(OpKind::Gru, way + " lengths", {make.real(gates(3)), r, make.real(kState), bias, lengths()},
               attributes);
      make.add(OpKind::GruGrad, way,
               {r, make.real(gates(3), 0.1, 0.9), make.real(kSequence), make.real(kSequence),
                make.real(kSequence), make.real(kState), lengths(DType::I64)},
               attributes);
      make.add(OpKind::GruGrad, way + " of the last state",
               {r, make.real(gates(3), 0.1, 0.9), make.real(kSequence), make.real(kSequence), none,
                make.real(kState), none},
               attributes);
      make.add(OpKind::Gru, way + " wide", {make.real({3, 17, 3 * 37}), make.real({3 * 37, 37}, -0.2, 0.2)},
               attributes)
          .smooth = false;
    }
}

void add_rnn_cases(OpCaseMaker& make) {
  for (const char* activation : {"tanh", "relu"})
    for (const int64_t reverse : {0, 1}) {
      const std::string way = std::string(activation) + (reverse ? " reverse" : "");
      const Attributes attributes{{Attr::Reverse, reverse}, {Attr::Activation, activation}};
      // Weights and states that are small against x, so that no sum lies near relu's kink.
      const Tensor r = make.real({kHidden, kHidden}, 0, 0.004);
      make.add(OpKind::Rnn, way, {make.apart(kSequence), r}, attributes);
      make.add(OpKind::Rnn, way + " lengths", {make.apart(kSequence), r, make.real(kState), lengths()},
               attributes);
      make.add(OpKind::RnnGrad, way,
               {recurrent_weights(make, 1), make.real(kSequence), make.real(kSequence), make.real(kState),
                lengths()},
               attributes);
    }
}

void add_scatter_cases(OpCaseMaker& make) {
  const auto by = [](int64_t axis, const char* reduction) {
    return Attributes{{Attr::Axis, axis}, {Attr::Reduction, reduction}};
  };
  for (const char* reduction : {"none", "add", "mul", "min", "max"}) {
    const std::string name = reduction;
    // Places that meet several updates, or none; some outside.
    make.add(OpKind::ScatterElements, name + " rows",
             {make.apart({3, 4}), make.whole({5, 4}, -3, 3), make.real({5, 4}, 1.5, 2.5)}, by(0, reduction));
    make.add(OpKind::ScatterElements, name + " part",
             {make.apart({3, 2, 4}), make.whole({2, 2, 3}, -6, 5, DType::I32), make.apart({2, 2, 3})},
             by(2, reduction))
        .smooth = name == "none" || name == "add" || name == "mul";
    make.add(OpKind::ScatterElements, name + " line",
             {make.apart({40}), make.whole({90}, 0, 39), make.real({90}, 0.5, 1.5)}, by(0, reduction))
        .smooth = name != "min" && name != "max";
    make.add(OpKind::ScatterElements, name + " integers",
             {make.whole({4, 3}, -9, 9), make.whole({2, 3}, 0, 3), make.whole({2, 3}, -9, 9)},
             by(0, reduction));
    make.add(OpKind::ScatterElements, name + " bytes",
             {make.whole({4, 3}, 0, 255, DType::U8), make.whole({2, 3}, 0, 3),
              make.whole({2, 3}, 0, 255, DType::U8)},
             by(0, reduction));
  }
  make.add(OpKind::ScatterElements, "none bool",
           {make.boolean({4, 3}), make.whole({2, 3}, 0, 3), make.boolean({2, 3})}, by(0, "none"));
  make.add(
      OpKind::ScatterElements, "mul zeros",
      {make.floats({4}, {0, 2, 3, 4}), from_int64s({DType::I64, {6}}, std::vector<int64_t>{0, 1, 1, 2, 3, 3}),
       make.floats({6}, {2, 0, 3, 0, 0, 0})},
      by(0, "mul"));
  // A central difference has each of two equals take half.
  for (const char* reduction : {"min", "max"})
    make.add(OpKind::ScatterElements, std::string(reduction) + " ties",
             {make.floats({3}, {1, 2, 3}), from_int64s({DType::I64, {2}}, std::vector<int64_t>{1, 0}),
              make.floats({2}, {2, 1})},
             by(0, reduction));
}

void add_cache_write_cases(OpCaseMaker& make) {
  const Attributes along_1{{Attr::Axis, int64_t{1}}};
  make.add(OpKind::CacheWrite, "heads",
           {make.real({2, 8, 3}), make.real({2, 3, 3}),
            from_int64s({DType::I64, {3}}, std::vector<int64_t>{5, 6, 7})},
           along_1);
  make.add(OpKind::CacheWrite, "left out",
           {make.real({2, 4, 3}), make.real({2, 4, 3}),
            from_int64s({DType::I32, {4}}, std::vector<int64_t>{3, -1, 4, 0})},
           along_1);
  make.add(OpKind::CacheWrite, "last axis integers",
           {make.whole({3, 5}, -9, 9), make.whole({3, 1}, -9, 9),
            from_int64s({DType::I64, {1}}, std::vector<int64_t>{2})},
           along_1);
  make.add(OpKind::CacheWrite, "bool",
           {make.boolean({4, 3}), make.boolean({2, 3}),
            from_int64s({DType::I64, {2}}, std::vector<int64_t>{0, 3})},
           Attributes{{Attr::Axis, int64_t{0}}});
}

void add_top_k_cases(OpCaseMaker& make) {
  const auto by = [](int64_t axis, int64_t count, int64_t largest) {
    return Attributes{{Attr::Axis, axis}, {Attr::Count, count}, {Attr::Largest, largest}, {Attr::Sorted, 1}};
  };
  for (const int64_t largest : {0, 1}) {
    const std::string which = largest ? "largest" : "smallest";
    make.add(OpKind::TopK, which, {make.apart({3, 7})}, by(1, 3, largest));
    make.add(OpKind::TopK, which + " in the middle", {make.apart({2, 5, 3})}, by(1, 5, largest));
    make.add(OpKind::TopK, which + " of equals", {make.whole({3, 9}, 0, 2)}, by(1, 4, largest));
    make.add(OpKind::TopK, which + " of floats and NaN",
             {make.floats({7}, {1, std::nan(""), 3, -2, std::nan(""), 3, HUGE_VAL})}, by(0, 5, largest))
        .smooth = false;
    make.add(OpKind::TopK, which + " wide", {make.real({5, 300})}, by(1, 17, largest)).smooth = false;
  }
  make.add(OpKind::TopK, "none", {make.real({2, 3})}, by(1, 0, 1));
}

}  // namespace

void add_recurrent_cases(OpCaseMaker& make) {
  add_lstm_cases(make);
  add_gru_cases(make);
  add_rnn_cases(make);
  add_scatter_cases(make);
  add_cache_write_cases(make);
  add_top_k_cases(make);
}

}  // namespace weft::dag
