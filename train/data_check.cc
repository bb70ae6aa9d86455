#include "train/data_check.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "data/convert.h"
#include "data/loader.h"

namespace weft::train {
namespace {

using configs::Job;
using dag::DType;
using dag::OpKind;

constexpr size_t kChunkBytes = size_t{4} << 20;

// Rows of one column with one kind of fault.
struct Fault {
  uint64_t rows = 0;
  uint64_t first_row = 0;
  std::string value{};                    // the first
  const IntegerBounds* bounds = nullptr;  // that it breaks

  void add(uint64_t row, const std::string& text, const IntegerBounds* broken = nullptr) {
    if (rows++ > 0) return;
    first_row = row;
    value = text;
    bounds = broken;
  }
};

// ---- elements

template <typename Bits>
bool all_finite(std::span<const std::byte> bytes, Bits exponent) {
  const auto* elements = reinterpret_cast<const Bits*>(bytes.data());
  const size_t count = bytes.size() / sizeof(Bits);
  Bits largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max<Bits>(largest, elements[i] & exponent);
  return largest != exponent;
}

bool all_finite(DType dtype, std::span<const std::byte> bytes) {
  switch (element_size(dtype)) {
    case 4:
      return all_finite<uint32_t>(bytes, 0x7F800000);
    case 8:
      return all_finite<uint64_t>(bytes, 0x7FF0000000000000);
    default:
      return all_finite<uint16_t>(bytes, dtype == DType::F16 ? 0x7C00 : 0x7F80);
  }
}

bool is_within(const IntegerBounds& bounds, int64_t value) {
  return (value >= bounds.low && value <= bounds.high) || bounds.also == value;
}

bool all_within(const IntegerBounds& bounds, std::span<const int64_t> values) {
  const int64_t also = bounds.also.value_or(bounds.low);
  bool within = true;
  for (const int64_t value : values)
    within &= ((value >= bounds.low) & (value <= bounds.high)) | (value == also);
  return within;
}

// ---- one column

// Which numbers that are not finite may stand in an input: -inf where the graph does nothing but add it or
// choose from it, for then it means "not this one", a mask; any where the graph itself asks which are NaN.
enum class Tolerance : uint8_t { Nothing, MinusInfinity, Anything };

Tolerance tolerance_of(const dag::Graph& graph, const std::string& input) {
  std::set<uint32_t> values;  // that hold its numbers
  for (const dag::ValueId value : graph.inputs())
    if (graph.value(value).name == input) values.insert(value.index);
  Tolerance tolerance = Tolerance::MinusInfinity;
  for (const dag::Op& op : graph.ops()) {
    if (op.phase != dag::Phase::Forward) continue;
    if (std::none_of(op.inputs.begin(), op.inputs.end(),
                     [&](dag::ValueId value) { return value.valid() && values.contains(value.index); }))
      continue;
    if (op.kind == OpKind::IsNaN || op.kind == OpKind::IsInf) return Tolerance::Anything;
    if (dag::op_table().row(op.kind).keeps_values || op.kind == OpKind::Expand || op.kind == OpKind::Slice)
      values.insert(op.outputs[0].index);
    else if (op.kind != OpKind::Add && op.kind != OpKind::Where && op.kind != OpKind::Max)
      tolerance = Tolerance::Nothing;
  }
  return tolerance;
}

class ColumnCheck {
 public:
  ColumnCheck(const data::Dataset& dataset, const data::Feed& feed, const Prepared& prepared)
      : dataset_(dataset),
        feed_(feed),
        sample_(data::sample_of(dataset, feed)),
        per_row_(static_cast<size_t>(sample_.element_count())) {
    const auto range = dataset.range(feed.column);
    for (const IntegerBounds& one : prepared.bounds)
      if (one.input == feed.input && !(range && is_within(one, range->low) && is_within(one, range->high)))
        bounds_.push_back(&one);
    if (dag::is_float(sample_.dtype) && !dataset.is_finite(feed.column))
      tolerance_ = tolerance_of(prepared.graph, feed.input);
  }

  Status run(const std::atomic<bool>* stop) {
    if (bounds_.empty() && !looks_at_floats() && !converts() && !dataset_.is_unchecked(feed_.column))
      return {};
    const auto size = static_cast<size_t>(
        std::max(sample_.bytes().value, dataset_.columns()[feed_.column].sample.bytes().value));
    const uint64_t count = dataset_.sample_count();
    const uint64_t at_once = std::max<uint64_t>(1, kChunkBytes / size);
    std::vector<uint32_t> rows;
    for (uint64_t first = 0; first < count; first += at_once) {
      if (stop != nullptr && stop->load()) return fail(ErrorCode::Cancelled, "stopped before anything began");
      rows.resize(static_cast<size_t>(std::min(at_once, count - first)));
      std::iota(rows.begin(), rows.end(), static_cast<uint32_t>(first));
      WEFT_TRY_STATUS(look_at(rows));
    }
    return {};
  }

  const data::Feed& feed() const { return feed_; }
  const dag::TensorSpec& sample() const { return sample_; }
  const Fault& misfits() const { return misfits_; }
  const Fault& outside() const { return outside_; }
  const Fault& not_finite() const { return not_finite_; }

 private:
  const data::Column& column() const { return dataset_.columns()[feed_.column]; }
  bool looks_at_floats() const { return tolerance_ != Tolerance::Anything; }
  bool converts() const { return sample_.dtype != column().sample.dtype; }

  static dag::Tensor rows_of(const dag::TensorSpec& sample, size_t count) {
    dag::TensorSpec spec = sample;
    spec.shape.insert(spec.shape.begin(), static_cast<int64_t>(count));
    return dag::Tensor(std::move(spec));
  }

  Status look_at(std::span<const uint32_t> rows) {
    dag::Tensor stored = rows_of(column().sample, rows.size());
    WEFT_TRY_STATUS(dataset_.read(feed_.column, rows, stored.mutable_bytes()));
    dag::Tensor values = stored;
    std::set<size_t> passed_over;  // rows that are told of already
    if (converts()) {
      values = rows_of(sample_, rows.size());
      convert(stored, values, rows.front(), passed_over);
    }
    if (!bounds_.empty()) look_at_integers(values, rows.front(), passed_over);
    if (looks_at_floats() && !all_finite(sample_.dtype, values.bytes())) look_at_floats(values, rows.front());
    return {};
  }

  // Row by row behind each misfit.
  void convert(const dag::Tensor& from, dag::Tensor& to, uint64_t first, std::set<size_t>& misfits) {
    const auto from_size = static_cast<size_t>(element_size(from.dtype()));
    const auto to_size = static_cast<size_t>(element_size(to.dtype()));
    const size_t count = static_cast<size_t>(from.element_count());
    for (size_t done = 0; done < count;) {
      const auto misfit = data::convert_elements(from.dtype(), from.bytes().subspan(done * from_size),
                                                 to.dtype(), to.mutable_bytes().subspan(done * to_size));
      if (!misfit) return;
      const size_t row = (done + *misfit) / per_row_;
      misfits_.add(first + row, data::element_text(from.dtype(), from.bytes(), done + *misfit));
      misfits.insert(row);
      done = (row + 1) * per_row_;
    }
  }

  void look_at_integers(const dag::Tensor& values, uint64_t first, const std::set<size_t>& passed_over) {
    dag::Tensor wide = values;
    if (values.dtype() != DType::I64)
      wide = dag::from_int64s({DType::I64, values.shape()}, to_int64s(values));
    const auto numbers = wide.as<int64_t>();
    for (const IntegerBounds* bounds : bounds_) {
      if (all_within(*bounds, numbers)) continue;
      for (size_t row = 0; row * per_row_ < numbers.size(); ++row) {
        const auto in_row = numbers.subspan(row * per_row_, per_row_);
        const auto bad = std::find_if(in_row.begin(), in_row.end(),
                                      [&](int64_t value) { return !is_within(*bounds, value); });
        if (bad != in_row.end() && !passed_over.contains(row))
          outside_.add(first + row, std::to_string(*bad), bounds);
      }
      return;
    }
  }

  void look_at_floats(const dag::Tensor& values, uint64_t first) {
    const auto size = static_cast<size_t>(element_size(sample_.dtype));
    const size_t rows = static_cast<size_t>(values.element_count()) / per_row_;
    for (size_t row = 0; row < rows; ++row) {
      const auto in_row = values.bytes().subspan(row * per_row_ * size, per_row_ * size);
      if (all_finite(sample_.dtype, in_row)) continue;
      for (size_t i = 0; i < per_row_; ++i) {
        if (all_finite(sample_.dtype, in_row.subspan(i * size, size))) continue;
        const std::string text = data::element_text(sample_.dtype, in_row, i);
        if (tolerance_ == Tolerance::MinusInfinity && text == "-inf") continue;
        not_finite_.add(first + row, text);
        break;
      }
    }
  }

  const data::Dataset& dataset_;
  const data::Feed& feed_;
  const dag::TensorSpec& sample_;
  const size_t per_row_;
  std::vector<const IntegerBounds*> bounds_;
  Tolerance tolerance_ = Tolerance::Anything;
  Fault misfits_, outside_, not_finite_;
};

// ---- words

const data::DataSpec& spec_of(const Job& job, DataUse use) {
  return use == DataUse::Train ? *job.train : use == DataUse::Test ? *job.test : *job.predict;
}

std::string_view path_of(DataUse use) {
  return use == DataUse::Train ? "data.train" : use == DataUse::Test ? "data.test" : "data.predict";
}

// "data.npz: column 'label' holds 3 in row 63 (the first is 0)".
std::string where(const Job& job, DataUse use, const data::Dataset& dataset, const std::string& column,
                  const Fault& fault) {
  return data::file_of(spec_of(job, use), column).string() + ": column '" + column + "' holds " +
         fault.value + " in " + dataset.place_of(fault.first_row);
}

std::string how_many(const Fault& fault, uint64_t all, const std::string& what) {
  return std::to_string(fault.rows) + " of " + std::to_string(all) + " rows " +
         (fault.rows == 1 ? "is " : "are ") + what;
}

std::string takes(const IntegerBounds& bounds) {
  return std::to_string(bounds.low) + " to " + std::to_string(bounds.high) +
         (bounds.also ? " and " + std::to_string(*bounds.also) + ", which is not counted" : "");
}

std::string cure(const ColumnCheck& check, const std::string& column) {
  if (!dag::is_integer(check.sample().dtype)) return "write the column in a type whose numbers it can hold";
  return "where whole numbers are meant, write `np.rint(" + column + ").astype(np.int64)` into the data";
}

}  // namespace

Result<std::vector<std::string>> check_data(const Job& job, DataUse use, const data::Dataset& dataset,
                                            const Prepared& prepared, const std::atomic<bool>* stop) {
  std::vector<std::string> warnings(dataset.notes().begin(), dataset.notes().end());
  const uint64_t count = dataset.sample_count();
  for (const data::Feed& feed : prepared.feeds) {
    ColumnCheck check(dataset, feed, prepared);
    WEFT_TRY_STATUS(check.run(stop));
    const std::string& column = dataset.columns()[feed.column].name;
    const auto refuse = [&](ErrorCode code, const std::string& what) {
      return fail(job.error(code, path_of(use), what));
    };
    if (feed.input.starts_with(dag::kWeightsInput))
      if (const Status weights = data::check_weights(dataset, feed.column); !weights)
        return refuse(weights.error().code,
                      data::file_of(spec_of(job, use), column).string() + ": " + weights.error().message);
    if (check.misfits().rows > 0)
      return refuse(ErrorCode::OutOfRange,
                    where(job, use, dataset, column, check.misfits()) + ", which is no number of the type " +
                        std::string(to_string(check.sample().dtype)) + " that the model takes: " +
                        how_many(check.misfits(), count, "so") + "; " + cure(check, column));
    if (check.outside().rows > 0)
      return refuse(ErrorCode::OutOfRange,
                    where(job, use, dataset, column, check.outside()) + ", and the model takes " +
                        takes(*check.outside().bounds) + ": " +
                        how_many(check.outside(), count, "out of range") +
                        "; check the data, or the model's number of classes or tokens");
    if (check.not_finite().rows == 0) continue;
    const std::string what = where(job, use, dataset, column, check.not_finite()) + ": " +
                             how_many(check.not_finite(), count, "not finite");
    if (use == DataUse::Test)
      warnings.push_back(what + ", and so no evaluation will have a loss");
    else if (use == DataUse::Predict)
      warnings.push_back(what + ", and so may be what is predicted of it");
    else if (job.on_divergence == dag::OnDivergence::Skip)
      warnings.push_back(what + "; steps that read such a row are skipped");
    else
      return refuse(ErrorCode::InvalidArgument,
                    what +
                        ", and nothing can be learnt from it; take such rows out of the data, or say "
                        "`on_divergence: skip`, which leaves out the steps that read them");
  }
  return warnings;
}

std::vector<std::string> sample_notes(const Job& job, uint64_t sample_count) {
  const auto text = [](uint64_t number) { return std::to_string(number); };
  const uint64_t batch = job.batch_size;
  if (sample_count < batch)
    return {"the data has " + text(sample_count) + " samples and a step takes " + text(batch) +
            ": every step takes samples more than once (" + text(batch) + " = " + text(batch / sample_count) +
            " x " + text(sample_count) + " + " + text(batch % sample_count) + ")"};
  if (!job.epochs) return {};
  const uint64_t all = *job.epochs * sample_count, left = all % batch;
  if (left * 100 < all) return {};
  return {text(*job.epochs) + (*job.epochs == 1 ? " epoch of " : " epochs of ") + text(sample_count) +
          " samples " + (*job.epochs == 1 ? "is " : "are ") + text(all / batch) + " steps of " + text(batch) +
          " and " + text(left) + " samples more, which are not trained on"};
}

std::vector<std::string> test_notes(const Job& job, const Prepared& evaluation, uint64_t sample_count) {
  const uint64_t left = job.microbatch_size == 0 ? 0 : sample_count % job.microbatch_size;
  const bool masks = evaluation.graph.find_output(dag::OutputRole::Counted) != nullptr;
  if (masks || left == 0) return {};
  return {"the test set's " + std::to_string(sample_count) + " samples are " +
          std::to_string(sample_count / job.microbatch_size) + " microbatches of " +
          std::to_string(job.microbatch_size) + " and " + std::to_string(left) +
          " samples more, which are not evaluated: the model computes its loss itself"};
}

}  // namespace weft::train
