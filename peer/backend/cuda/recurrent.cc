// Recurrent cells over a sequence: for each step the library's product with the recurrent weights, in float32
// whatever the job's precision, and a kernel for what stands between two of them.
#include "peer/backend/cuda/kernels/recurrent.h"

#include "peer/backend/cuda/kernel.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::OpKind;

struct Sequence {
  int64_t steps, batch, hidden;
  bool reverse;
  int lengths;  // slot
  bool wide;    // they are I64

  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  int64_t state() const { return batch * hidden; }  // elements
  int64_t rows(int64_t gates) const { return gates * state(); }
  Grid grid() const { return grid_for(state()); }

  Cells cells(const Call& call, int64_t t) const {
    Cells cells{.batch = batch, .hidden = hidden, .step = t, .narrow = {}, .wide = {}};
    if (wide)
      cells.wide = call.in<int64_t>(lengths, batch);
    else
      cells.narrow = call.in<int32_t>(lengths, batch);
    return cells;
  }
};

// `x`: an operand that is [T,B,...]; `r`: the recurrent weights; `lengths`: one that may be absent.
Sequence sequence_of(const KernelRequest& request, size_t x, size_t r, size_t lengths) {
  const bool wide = request.has(lengths) && request.in(lengths).spec.dtype == dag::DType::I64;
  return {request.in_shape(x)[0],      request.in_shape(x)[1],
          request.in_shape(r)[1],      request.attributes().get_int(Attr::Reverse) != 0,
          request.input_slot(lengths), wide};
}

// Step t of a value that is [T, ...] with so many elements a step; nothing of an absent one.
template <typename T>
Array<T> at_step(const Array<T>& whole, int64_t t, int64_t elements) {
  return whole.data == nullptr ? whole : Array<T>{whole.data + t * elements, elements};
}
template <typename T>
Array<const T> read(const Array<T>& array) {
  return {array.data, array.count};
}

Status copy_or_zero(const Call& call, const Array<const float>& from, const Array<float>& to) {
  const Bytes size{to.count * static_cast<int64_t>(sizeof(float))};
  auto* target = reinterpret_cast<std::byte*>(to.data);
  if (from.data == nullptr) return call.device.fill_zero(Stream::Compute, target, size);
  return call.device.copy_within(Stream::Compute, reinterpret_cast<const std::byte*>(from.data), target,
                                 size);
}

// The weights of gates `first` to `first + count`, and what a step's rows are multiplied with them to.
class GateProduct {
 public:
  enum class Direction : uint8_t {
    Forward,   // [B,H] -> [B,count*H]
    Backward,  // [B,count*H] -> [B,H]
  };
  // Unsupported where the library has no such product.
  static Result<GateProduct> make(const KernelRequest& request, const Sequence& s, Direction direction,
                                  int64_t first, int64_t count) {
    const bool forward = direction == Direction::Forward;
    ProductSpec spec;
    spec.m = s.batch;
    spec.n = forward ? count * s.hidden : s.hidden;
    spec.k = forward ? s.hidden : count * s.hidden;
    spec.transpose_b = forward;
    spec.stride_c = spec.m * spec.n;
    GateProduct made;
    WEFT_TRY(made.op_, request.device.make_product(spec));
    made.offset_ = first * s.hidden * s.hidden;
    return made;
  }

  int64_t workspace_bytes() const { return align_up(op_->workspace_bytes().value, 256); }
  std::string implementation() const { return std::string(op_->implementation()); }
  Status run(const Call& call, const Array<const float>& rows, const Array<const float>& weights,
             const Array<float>& result, int64_t workspace) const {
    const auto bytes = [](const float* data) { return reinterpret_cast<const std::byte*>(data); };
    return call.device.run(*op_, bytes(rows.data), bytes(weights.data + offset_), nullptr,
                           reinterpret_cast<std::byte*>(result.data), call.workspace + workspace);
  }

 private:
  std::shared_ptr<LibraryOp> op_;
  int64_t offset_ = 0;  // elements
};
using Direction = GateProduct::Direction;

// A kernel's workspace: arrays of floats, and one place for the library, which works on one product at a
// time.
class Scratch {
 public:
  int64_t add(int64_t floats) {
    const int64_t at = bytes_;
    bytes_ += align_up(floats * static_cast<int64_t>(sizeof(float)), 256);
    return at;
  }
  int64_t library(std::initializer_list<const GateProduct*> products) {
    const int64_t at = bytes_;
    int64_t most = 0;
    for (const GateProduct* product : products) most = std::max(most, product->workspace_bytes());
    bytes_ += most;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// ---- forward ----

// Walks through the steps. `cell` gets the step, the state before it, its product with the weights (absent
// where that state is zero) and where the next state belongs.
struct Forward {
  Sequence s;
  int h0, last, before;  // slots of the first state, of the last one, of those before each step
  bool has_first;

  template <typename Cell>
  Status run(const Call& call, Cell cell) const {
    const auto states = call.out<float>(before, s.steps * s.state());
    const auto first = at_step(states, s.step(0), s.state());
    WEFT_TRY_STATUS(copy_or_zero(call, call.in<float>(h0, s.state()), first));
    for (int64_t i = 0; i < s.steps; ++i) {
      const auto next =
          i + 1 < s.steps ? at_step(states, s.step(i + 1), s.state()) : call.out<float>(last, s.state());
      const bool is_zero = i == 0 && !has_first;
      WEFT_TRY_STATUS(cell(i, s.step(i), read(at_step(states, s.step(i), s.state())), is_zero, next));
    }
    return {};
  }
};

KernelResult make_lstm(const KernelRequest& request) {
  const Sequence s = sequence_of(request, 0, 1, 4);
  const Forward forward{s, request.input_slot(2), request.output_slot(1), request.output_slot(5),
                        request.has(2)};
  WEFT_TRY(const GateProduct product, GateProduct::make(request, s, Direction::Forward, 0, 4));
  const int x = request.input_slot(0), r = request.input_slot(1), c0 = request.input_slot(3);
  const int y = request.output_slot(0), c_last = request.output_slot(2), gates = request.output_slot(3),
            cells = request.output_slot(4);
  Scratch scratch;
  const int64_t products_at = scratch.add(s.rows(4)), library_at = scratch.library({&product});
  const auto run = [=](const Call& call) -> Status {
    const auto weights = call.in<float>(r, 4 * s.hidden * s.hidden),
               input = call.in<float>(x, s.steps * s.rows(4));
    const auto made = call.scratch<float>(products_at, s.rows(4)),
               c = call.out<float>(cells, s.steps * s.state());
    const auto out_gates = call.out<float>(gates, s.steps * s.rows(4)),
               out = call.out<float>(y, s.steps * s.state());
    Status walked = forward.run(
        call, [&](int64_t i, int64_t t, const auto& state, bool is_zero, const auto& next) -> Status {
          if (!is_zero) {
            WEFT_TRY_STATUS(product.run(call, state, weights, made, library_at));
          }
          const auto c_before =
              i == 0 ? call.in<float>(c0, s.state()) : read(at_step(c, s.step(i - 1), s.state()));
          return call.launch(
              k_lstm_cell, s.grid(),
              {s.cells(call, t), at_step(input, t, s.rows(4)), is_zero ? Array<const float>{} : read(made),
               state, c_before, at_step(out_gates, t, s.rows(4)), at_step(c, t, s.state()),
               at_step(out, t, s.state()), next});
        });
    if (!walked) return walked;
    return copy_or_zero(call, read(at_step(c, s.step(s.steps - 1), s.state())),
                        call.out<float>(c_last, s.state()));
  };
  return request.make("cell by cell, " + product.implementation(), run, scratch.bytes());
}

KernelResult make_gru_linear(const KernelRequest& request, const Sequence& s, const Forward& forward) {
  WEFT_TRY(const GateProduct product, GateProduct::make(request, s, Direction::Forward, 0, 3));
  const int x = request.input_slot(0), r = request.input_slot(1), bias = request.input_slot(3);
  const int y = request.output_slot(0), gates = request.output_slot(2), inner = request.output_slot(3);
  Scratch scratch;
  const int64_t products_at = scratch.add(s.rows(3)), library_at = scratch.library({&product});
  const auto run = [=](const Call& call) -> Status {
    const auto weights = call.in<float>(r, 3 * s.hidden * s.hidden),
               input = call.in<float>(x, s.steps * s.rows(3));
    const auto made = call.scratch<float>(products_at, s.rows(3)),
               out_inner = call.out<float>(inner, s.steps * s.state());
    const auto out_gates = call.out<float>(gates, s.steps * s.rows(3)),
               out = call.out<float>(y, s.steps * s.state());
    return forward.run(
        call, [&](int64_t, int64_t t, const auto& state, bool is_zero, const auto& next) -> Status {
          if (!is_zero) {
            WEFT_TRY_STATUS(product.run(call, state, weights, made, library_at));
          }
          return call.launch(
              k_gru_cell, s.grid(),
              {s.cells(call, t), at_step(input, t, s.rows(3)), is_zero ? Array<const float>{} : read(made),
               call.in<float>(bias, s.hidden), state, at_step(out_gates, t, s.rows(3)),
               at_step(out_inner, t, s.state()), at_step(out, t, s.state()), next});
        });
  };
  return request.make("cell by cell, " + product.implementation(), run, scratch.bytes());
}

// The third gate's product is of the reset state: two products a step.
KernelResult make_gru(const KernelRequest& request) {
  const Sequence s = sequence_of(request, 0, 1, 4);
  const Forward forward{s, request.input_slot(2), request.output_slot(1), request.output_slot(4),
                        request.has(2)};
  if (request.attributes().get_int(Attr::LinearBeforeReset) != 0) return make_gru_linear(request, s, forward);
  WEFT_TRY(const GateProduct two, GateProduct::make(request, s, Direction::Forward, 0, 2));
  WEFT_TRY(const GateProduct third, GateProduct::make(request, s, Direction::Forward, 2, 1));
  const int x = request.input_slot(0), r = request.input_slot(1);
  const int y = request.output_slot(0), gates = request.output_slot(2), inner = request.output_slot(3);
  Scratch scratch;
  const int64_t products_at = scratch.add(s.rows(2)), library_at = scratch.library({&two, &third});
  const auto run = [=](const Call& call) -> Status {
    const auto weights = call.in<float>(r, 3 * s.hidden * s.hidden),
               input = call.in<float>(x, s.steps * s.rows(3));
    const auto of_two = call.scratch<float>(products_at, s.rows(2)),
               of_third = call.scratch<float>(products_at, s.state());
    const auto out_gates = call.out<float>(gates, s.steps * s.rows(3)),
               out = call.out<float>(y, s.steps * s.state()),
               out_inner = call.out<float>(inner, s.steps * s.state());
    return forward.run(
        call, [&](int64_t, int64_t t, const auto& state, bool is_zero, const auto& next) -> Status {
          const auto own_gates = at_step(out_gates, t, s.rows(3)), reset = at_step(out_inner, t, s.state());
          const auto own_x = at_step(input, t, s.rows(3));
          const Array<const float> none;
          if (!is_zero) {
            WEFT_TRY_STATUS(two.run(call, state, weights, of_two, library_at));
          }
          WEFT_TRY_STATUS(
              call.launch(k_gru_gates, s.grid(),
                          {s.cells(call, t), own_x, is_zero ? none : read(of_two), state, own_gates, reset}));
          if (!is_zero) {
            WEFT_TRY_STATUS(third.run(call, read(reset), weights, of_third, library_at));
          }
          return call.launch(k_gru_hidden, s.grid(),
                             {s.cells(call, t), own_x, is_zero ? none : read(of_third), state, own_gates,
                              at_step(out, t, s.state()), next});
        });
  };
  return request.make("cell by cell, " + two.implementation(), run, scratch.bytes());
}

KernelResult make_rnn(const KernelRequest& request) {
  const Sequence s = sequence_of(request, 0, 1, 3);
  const Forward forward{s, request.input_slot(2), request.output_slot(1), request.output_slot(2),
                        request.has(2)};
  const int32_t relu = request.attributes().get_string(Attr::Activation) == "relu" ? 1 : 0;
  WEFT_TRY(const GateProduct product, GateProduct::make(request, s, Direction::Forward, 0, 1));
  const int x = request.input_slot(0), r = request.input_slot(1), y = request.output_slot(0);
  Scratch scratch;
  const int64_t products_at = scratch.add(s.state()), library_at = scratch.library({&product});
  const auto run = [=](const Call& call) -> Status {
    const auto weights = call.in<float>(r, s.hidden * s.hidden),
               input = call.in<float>(x, s.steps * s.state());
    const auto made = call.scratch<float>(products_at, s.state()),
               out = call.out<float>(y, s.steps * s.state());
    return forward.run(
        call, [&](int64_t, int64_t t, const auto& state, bool is_zero, const auto& next) -> Status {
          if (!is_zero) {
            WEFT_TRY_STATUS(product.run(call, state, weights, made, library_at));
          }
          return call.launch(
              k_rnn_cell, s.grid(),
              {s.cells(call, t), at_step(input, t, s.state()), is_zero ? Array<const float>{} : read(made),
               state, at_step(out, t, s.state()), next, relu});
        });
  };
  return request.make("cell by cell, " + product.implementation(), run, scratch.bytes());
}

// ---- backward ----

// Walks back. `cell` gets the step and the later step's product with the weights, and makes its own; the last
// one is added to what is left in dh.
struct Backward {
  Sequence s;
  int dh_last, dh;  // slots: what comes to the last state; the first state's gradient, in which all is summed

  template <typename Cell>
  Status run(const Call& call, const Array<float>& product, Cell cell) const {
    const auto sum = call.out<float>(dh, s.state());
    WEFT_TRY_STATUS(copy_or_zero(call, call.in<float>(dh_last, s.state()), sum));
    for (int64_t i = s.steps; i-- > 0;)
      WEFT_TRY_STATUS(cell(i, s.step(i), i + 1 < s.steps ? read(product) : Array<const float>{}, sum));
    return call.launch(k_add_product, s.grid(), {read(product), sum});
  }
};

KernelResult make_lstm_grad(const KernelRequest& request) {
  const Sequence s = sequence_of(request, 1, 0, 7);
  const Backward backward{s, request.input_slot(4), request.output_slot(1)};
  WEFT_TRY(const GateProduct product, GateProduct::make(request, s, Direction::Backward, 0, 4));
  const int r = request.input_slot(0), gates = request.input_slot(1), cells = request.input_slot(2),
            dy = request.input_slot(3), dc_last = request.input_slot(5), c0 = request.input_slot(6);
  const int dx = request.output_slot(0), dc0 = request.output_slot(2);
  Scratch scratch;
  const int64_t products_at = scratch.add(s.state()), library_at = scratch.library({&product});
  const auto run = [=](const Call& call) -> Status {
    const auto weights = call.in<float>(r, 4 * s.hidden * s.hidden),
               in_gates = call.in<float>(gates, s.steps * s.rows(4));
    const auto c = call.in<float>(cells, s.steps * s.state()),
               in_dy = call.in<float>(dy, s.steps * s.state());
    const auto made = call.scratch<float>(products_at, s.state()),
               d = call.out<float>(dx, s.steps * s.rows(4)), dc = call.out<float>(dc0, s.state());
    WEFT_TRY_STATUS(copy_or_zero(call, call.in<float>(dc_last, s.state()), dc));
    return backward.run(call, made, [&](int64_t i, int64_t t, const auto& later, const auto& dh) -> Status {
      const auto c_before = i == 0 ? call.in<float>(c0, s.state()) : at_step(c, s.step(i - 1), s.state());
      const auto own = at_step(d, t, s.rows(4));
      WEFT_TRY_STATUS(
          call.launch(k_lstm_cell_grad, s.grid(),
                      {s.cells(call, t), at_step(in_gates, t, s.rows(4)), at_step(c, t, s.state()), c_before,
                       at_step(in_dy, t, s.state()), later, own, dh, dc}));
      return product.run(call, read(own), weights, made, library_at);
    });
  };
  return request.make("cell by cell, " + product.implementation(), run, scratch.bytes());
}

KernelResult make_gru_linear_grad(const KernelRequest& request, const Sequence& s, const Backward& backward) {
  WEFT_TRY(const GateProduct product, GateProduct::make(request, s, Direction::Backward, 0, 3));
  const int r = request.input_slot(0), gates = request.input_slot(1), inner = request.input_slot(2),
            before = request.input_slot(3), dy = request.input_slot(4);
  const int dx = request.output_slot(0), dinner = request.output_slot(1);
  Scratch scratch;
  const int64_t both_at = scratch.add(s.rows(3)), products_at = scratch.add(s.state()),
                library_at = scratch.library({&product});
  const auto run = [=](const Call& call) -> Status {
    const int64_t states = s.steps * s.state();
    const auto weights = call.in<float>(r, 3 * s.hidden * s.hidden),
               in_gates = call.in<float>(gates, s.steps * s.rows(3));
    const auto in_inner = call.in<float>(inner, states), in_before = call.in<float>(before, states),
               in_dy = call.in<float>(dy, states);
    const auto both = call.scratch<float>(both_at, s.rows(3)),
               made = call.scratch<float>(products_at, s.state());
    const auto d = call.out<float>(dx, s.steps * s.rows(3)), out_dinner = call.out<float>(dinner, states);
    return backward.run(call, made, [&](int64_t, int64_t t, const auto& later, const auto& dh) -> Status {
      WEFT_TRY_STATUS(
          call.launch(k_gru_cell_grad, s.grid(),
                      {s.cells(call, t), at_step(in_gates, t, s.rows(3)), at_step(in_inner, t, s.state()),
                       at_step(in_before, t, s.state()), at_step(in_dy, t, s.state()), later,
                       at_step(d, t, s.rows(3)), at_step(out_dinner, t, s.state()), both, dh}));
      return product.run(call, read(both), weights, made, library_at);
    });
  };
  return request.make("cell by cell, " + product.implementation(), run, scratch.bytes());
}

KernelResult make_gru_grad(const KernelRequest& request) {
  const Sequence s = sequence_of(request, 1, 0, 6);
  const Backward backward{s, request.input_slot(5), request.output_slot(2)};
  if (request.attributes().get_int(Attr::LinearBeforeReset) != 0)
    return make_gru_linear_grad(request, s, backward);
  WEFT_TRY(const GateProduct two, GateProduct::make(request, s, Direction::Backward, 0, 2));
  WEFT_TRY(const GateProduct third, GateProduct::make(request, s, Direction::Backward, 2, 1));
  const int r = request.input_slot(0), gates = request.input_slot(1), before = request.input_slot(3),
            dy = request.input_slot(4);
  const int dx = request.output_slot(0), dinner = request.output_slot(1);
  Scratch scratch;
  const int64_t both_at = scratch.add(s.rows(2)), hidden_at = scratch.add(s.state()),
                products_at = scratch.add(s.state()), library_at = scratch.library({&two, &third});
  const auto run = [=](const Call& call) -> Status {
    const int64_t states = s.steps * s.state();
    const auto weights = call.in<float>(r, 3 * s.hidden * s.hidden),
               in_gates = call.in<float>(gates, s.steps * s.rows(3));
    const auto in_before = call.in<float>(before, states), in_dy = call.in<float>(dy, states);
    const auto both = call.scratch<float>(both_at, s.rows(2)),
               hidden = call.scratch<float>(hidden_at, s.state()),
               made = call.scratch<float>(products_at, s.state());
    const auto d = call.out<float>(dx, s.steps * s.rows(3)), out_dinner = call.out<float>(dinner, states);
    return backward.run(call, made, [&](int64_t, int64_t t, const auto& later, const auto& dh) -> Status {
      const auto own_gates = at_step(in_gates, t, s.rows(3)), own_before = at_step(in_before, t, s.state());
      const auto own = at_step(d, t, s.rows(3)), own_dinner = at_step(out_dinner, t, s.state());
      WEFT_TRY_STATUS(call.launch(
          k_gru_hidden_grad, s.grid(),
          {s.cells(call, t), own_gates, own_before, at_step(in_dy, t, s.state()), later, own, hidden, dh}));
      WEFT_TRY_STATUS(third.run(call, read(hidden), weights, own_dinner, library_at));
      WEFT_TRY_STATUS(
          call.launch(k_gru_reset_grad, s.grid(),
                      {s.cells(call, t), own_gates, own_before, read(own_dinner), own, both, dh}));
      return two.run(call, read(both), weights, made, library_at);
    });
  };
  return request.make("cell by cell, " + two.implementation(), run, scratch.bytes());
}

KernelResult make_rnn_grad(const KernelRequest& request) {
  const Sequence s = sequence_of(request, 1, 0, 4);
  const Backward backward{s, request.input_slot(3), request.output_slot(1)};
  const int32_t relu = request.attributes().get_string(Attr::Activation) == "relu" ? 1 : 0;
  WEFT_TRY(const GateProduct product, GateProduct::make(request, s, Direction::Backward, 0, 1));
  const int r = request.input_slot(0), y = request.input_slot(1), dy = request.input_slot(2),
            dx = request.output_slot(0);
  Scratch scratch;
  const int64_t products_at = scratch.add(s.state()), library_at = scratch.library({&product});
  const auto run = [=](const Call& call) -> Status {
    const int64_t states = s.steps * s.state();
    const auto weights = call.in<float>(r, s.hidden * s.hidden), in_y = call.in<float>(y, states),
               in_dy = call.in<float>(dy, states);
    const auto made = call.scratch<float>(products_at, s.state()), d = call.out<float>(dx, states);
    return backward.run(call, made, [&](int64_t, int64_t t, const auto& later, const auto& dh) -> Status {
      const auto own = at_step(d, t, s.state());
      WEFT_TRY_STATUS(call.launch(k_rnn_cell_grad, s.grid(),
                                  {s.cells(call, t), at_step(in_y, t, s.state()),
                                   at_step(in_dy, t, s.state()), later, own, dh, relu}));
      return product.run(call, read(own), weights, made, library_at);
    });
  };
  return request.make("cell by cell, " + product.implementation(), run, scratch.bytes());
}

KernelResult make(const KernelRequest& request) {
  switch (request.op.kind) {
    case OpKind::Lstm:
      return make_lstm(request);
    case OpKind::LstmGrad:
      return make_lstm_grad(request);
    case OpKind::Gru:
      return make_gru(request);
    case OpKind::GruGrad:
      return make_gru_grad(request);
    case OpKind::Rnn:
      return make_rnn(request);
    case OpKind::RnnGrad:
      return make_rnn_grad(request);
    default:
      return request.decline();
  }
}

}  // namespace

KernelResult make_recurrent(const KernelRequest& request) {
  if (!request.is_f32(request.out(0))) return request.decline();
  KernelResult made = make(request);
  if (!made && made.error().code == ErrorCode::Unsupported) return request.decline();
  return made;
}

}  // namespace weft::peer::cuda
