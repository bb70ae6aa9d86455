#include "train/matching.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "dag/onnx/batch_axis.h"
#include "data/convert.h"

namespace weft::train {
namespace {

using configs::Job;
using dag::DType;
using dag::TensorSpec;
using Port = onnx::OnnxModel::Port;

constexpr int64_t kValueElementsMax = int64_t{1} << 28;  // of an input that is the same for every sample

std::string list_columns(const data::Dataset& dataset) {
  std::string text;
  for (const data::Column& column : dataset.columns())
    text += (text.empty() ? "" : ", ") + column.name + " " + to_string(column.sample);
  for (const std::string& other : dataset.others()) text += (text.empty() ? "" : ", ") + other;
  return text;
}

std::string describe(const Port& port) {
  std::string text = port.dtype + "[";
  for (size_t i = 0; i < port.dims.size(); ++i) text += (i ? "," : "") + port.dims[i];
  return text + "]";
}

std::optional<int64_t> number_of(const std::string& dim) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(dim.data(), dim.data() + dim.size(), value);
  if (error != std::errc() || end != dim.data() + dim.size() || value < 0) return std::nullopt;
  return value;
}

// How to say what feeds an input.
std::string feeding(const Job& job, const std::string& input) {
  return job.from_options ? "say --input " + input + "=COLUMN" : "add `" + input + ": <column>`";
}
std::string giving_value(const Job& job, const std::string& input) {
  return job.from_options ? "--value " + input + "=NUMBER" : "`" + input + ": {value: <number>}`";
}
std::string path_of(const std::string& input) { return "inputs." + input; }

class Matcher {
 public:
  Matcher(const Job& job, const onnx::OnnxModel& model)
      : job_(job), ports_(model.inputs()), symbol_(onnx::batch_symbol(model)) {}

  Result<Matching> run(const data::Dataset& dataset) {
    WEFT_TRY_STATUS(check_names());
    WEFT_TRY_STATUS(fixed_batch());
    Matching matching;
    WEFT_TRY(matching.values, values(job_.microbatch_size));
    for (const Port& port : ports_)
      if (!matching.values.contains(port.name)) WEFT_TRY_STATUS(feed(port, dataset, matching));
    return matching;
  }

  Result<std::optional<uint32_t>> fixed_batch() const {
    const Port* first = nullptr;
    std::optional<int64_t> size;
    for (const Port& port : ports_) {
      if (job_.input_values.contains(port.name) || port.dims.empty()) continue;
      const auto fixed = number_of(port.dims[batch_axis(port)]);
      if (!fixed) continue;
      if (size && *size != *fixed)
        return fail(error(port, ErrorCode::InvalidArgument,
                          "the inputs '" + first->name + "' " + describe(*first) + " and '" + port.name +
                              "' " + describe(port) + " begin with different numbers, so that one of them " +
                              "does not have its batch first: " + naming(port) + ", or " +
                              giving_value(job_, port.name) + " where it is the same for every sample"));
      size = fixed;
      first = &port;
    }
    if (!size) return std::optional<uint32_t>{};
    if (*size < 1 || *size > int64_t{1} << 30)
      return fail(error(*first, ErrorCode::InvalidArgument,
                        "the model was exported with a batch of " + std::to_string(*size) +
                            "; export it with dynamic_axes"));
    return std::optional(static_cast<uint32_t>(*size));
  }

  Result<std::map<std::string, dag::Tensor>> values(int64_t batch) const {
    std::map<std::string, dag::Tensor> tensors;
    for (const Port& port : ports_)
      if (const auto named = job_.input_values.find(port.name); named != job_.input_values.end()) {
        WEFT_TRY(tensors[port.name], value(port, named->second, batch));
      }
    return tensors;
  }

 private:
  size_t batch_axis(const Port& port) const { return onnx::batch_axis(port, symbol_); }

  Error error(const Port& port, ErrorCode code, const std::string& what) const {
    return job_.error(code, path_of(port.name), what);
  }
  std::string naming(const Port& port) const {
    const std::string symbol = symbol_.empty() ? "batch" : symbol_;
    return "export the model with dynamic_axes that name the batch, as {'" + port.name + "': {1: '" + symbol +
           "'}}";
  }

  Status check_names() const {
    for (const auto& [input, column] : job_.inputs) WEFT_TRY_STATUS(check_name(input));
    for (const auto& [input, value] : job_.input_values) WEFT_TRY_STATUS(check_name(input));
    return {};
  }
  Status check_name(const std::string& input) const {
    if (std::any_of(ports_.begin(), ports_.end(), [&](const Port& port) { return port.name == input; }))
      return {};
    std::string names;
    for (const Port& port : ports_) names += (names.empty() ? "'" : ", '") + port.name + "'";
    return fail(job_.error(ErrorCode::NotFound, path_of(input),
                           "the model has no input '" + input + "'; it has " + names));
  }

  // ---- an input with a value

  // What the file says of the input's shape, with this batch; the value's own where it says nothing.
  Result<dag::Shape> value_shape(const Port& port, const configs::InputValue& value, int64_t batch) const {
    const bool fills = value.shape.empty();  // one number for every element
    const auto mismatch = [&](const std::string& why) {
      return fail(error(port, ErrorCode::InvalidArgument,
                        "the input '" + port.name + "' is " + describe(port) + ", and its value " +
                            (fills ? "is one number" : "has the shape " + dag::to_string(value.shape)) +
                            ": " + why));
    };
    if (!port.has_shape) return value.shape;
    if (!fills && value.shape.size() != port.dims.size()) return mismatch("the ranks differ");
    dag::Shape shape;
    for (size_t i = 0; i < port.dims.size(); ++i) {
      std::optional<int64_t> size = number_of(port.dims[i]);
      if (!size && port.dims[i] == symbol_) size = batch;
      if (const auto said = job_.sizes.find(port.dims[i]); !size && said != job_.sizes.end())
        size = said->second;
      if (!size && fills) return mismatch("axis " + std::to_string(i) + " is open; write the value as lists");
      if (!fills && size && *size != value.shape[i])
        return mismatch("axis " + std::to_string(i) + " differs");
      shape.push_back(fills ? *size : value.shape[i]);
    }
    return shape;
  }

  Result<dag::Tensor> value(const Port& port, const configs::InputValue& value, int64_t batch) const {
    const auto dtype = dag::parse_dtype(port.dtype);
    if (!dtype) return fail(error(port, ErrorCode::Unsupported, "it is a " + port.dtype + ", not a tensor"));
    WEFT_TRY(const dag::Shape shape, value_shape(port, value, batch));
    const auto count = dag::checked_element_count(shape);
    if (!count || *count > kValueElementsMax)
      return fail(error(port, ErrorCode::ResourceExhausted,
                        "a value of " + dag::to_string(shape) + " is larger than one may be"));
    std::vector<double> numbers = value.numbers;
    if (value.shape.empty()) numbers.assign(static_cast<size_t>(*count), value.numbers.front());
    dag::Tensor tensor({*dtype, shape});
    const auto misfit =
        data::convert_elements(DType::F64, std::as_bytes(std::span(numbers)), *dtype, tensor.mutable_bytes());
    const bool exact = dag::is_float(*dtype) || std::all_of(numbers.begin(), numbers.end(), [](double n) {
                         return std::abs(n) <= 9007199254740992.0;
                       });
    if (!misfit && exact) return tensor;
    return fail(error(port, ErrorCode::InvalidArgument,
                      "the input '" + port.name + "' is " + describe(port) + ", and its value " +
                          std::to_string(numbers[misfit.value_or(0)]) + " is no number of that type"));
  }

  // ---- an input with a column

  Status feed(const Port& port, const data::Dataset& dataset, Matching& matching) const {
    const auto named = job_.inputs.find(port.name);
    if (named == job_.inputs.end())
      return fail(job_.error(
          ErrorCode::InvalidArgument, "inputs",
          "the model's input '" + port.name + "' " + describe(port) +
              " gets no data: " + feeding(job_, port.name) + ", or " + giving_value(job_, port.name) +
              " where it is the same for every sample; the data has " + list_columns(dataset)));
    const auto found = find_column(job_, dataset, path_of(port.name), named->second);
    if (!found)
      return fail(found.error().code,
                  found.error().message +
                      (job_.from_options || port.dims.empty()
                           ? "; " + feeding(job_, port.name) + ", or " + giving_value(job_, port.name)
                           : ""));
    const size_t column = *found;
    const TensorSpec& sample = dataset.columns()[column].sample;
    WEFT_TRY(matching.shapes[port.name], match_shape(port, sample, named->second));
    data::Feed& feed = matching.feeds.emplace_back(data::Feed{port.name, column});
    if (port.dtype == to_string(sample.dtype)) return {};
    WEFT_TRY(const DType dtype, dag::parse_dtype(port.dtype));
    feed.sample = TensorSpec{dtype, sample.shape};
    if (sample.dtype == DType::U8 && dag::is_float(dtype))
      matching.warnings.push_back("column '" + named->second + "' is u8 and the input '" + port.name +
                                  "' takes " + port.dtype +
                                  ": its numbers are taken as they are, 0 to 255; " +
                                  "where the model learnt from 0 to 1, say `columns: {" + named->second +
                                  ": {scale: 0.00392156862745098}}` beside the data's path, or write `" +
                                  named->second + ".astype(np.float32) / 255` into the data");
    return {};
  }

  // The column's shape under the microbatch, against what the file says of the input.
  Result<dag::Shape> match_shape(const Port& port, const TensorSpec& sample,
                                 const std::string& column) const {
    const auto mismatch = [&](const std::string& why) {
      return fail(error(port, ErrorCode::InvalidArgument,
                        "input '" + port.name + "' of the model is " + describe(port) +
                            ", a sample of the column is " + to_string(sample) + ": " + why));
    };
    if (!dag::parse_dtype(port.dtype)) return mismatch("the types differ");
    dag::Shape shape = sample.shape;
    shape.insert(shape.begin(), job_.microbatch_size);
    if (!port.has_shape) return shape;
    if (port.dims.empty())
      return mismatch("it is one number for all samples; give it with " + giving_value(job_, port.name));
    const size_t batch = batch_axis(port);
    std::vector<std::string> dims = port.dims;  // of a sample
    dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(batch));
    if (dims.size() != sample.shape.size())
      return mismatch("the ranks differ (" + batch_is(batch) + ")" + reshaping(dims, sample, column));
    WEFT_TRY_STATUS(check_batch(port, batch));
    for (size_t i = 0; i < dims.size(); ++i) {
      const std::string axis = "axis " + std::to_string(i < batch ? i : i + 1);
      const auto number = number_of(dims[i]);
      const auto said = job_.sizes.find(dims[i]);
      if (number && *number != sample.shape[i])
        return mismatch(axis + " differs" + reshaping(dims, sample, column));
      if (!number && said != job_.sizes.end() && said->second != sample.shape[i])
        return mismatch(axis + " differs: --size says " + dims[i] + "=" + std::to_string(said->second));
    }
    return shape;
  }

  static std::string batch_is(size_t axis) {
    return axis == 0
               ? "the first axis of the input is the batch"
               : "axis " + std::to_string(axis) + " of the input is the batch, which the column has first";
  }

  // The line of numpy that makes the samples what the input takes, where as many elements do.
  static std::string reshaping(const std::vector<std::string>& dims, const TensorSpec& sample,
                               const std::string& column) {
    int64_t count = 1;
    std::string list;
    for (const std::string& dim : dims) {
      const auto number = number_of(dim);
      if (!number || *number > dag::kElementCountMax / std::max<int64_t>(count, 1)) return {};
      count *= *number;
      list += ", " + dim;
    }
    if (count != sample.element_count()) return {};
    return "; `" + column + ".reshape(-1" + list + ")` has that shape, and np.moveaxis turns axes";
  }

  Status check_batch(const Port& port, size_t axis) const {
    const auto fixed = number_of(port.dims[axis]);
    if (!fixed || *fixed == job_.microbatch_size) return {};
    const std::string size = port.dims[axis];
    if (job_.from_options)
      return fail(error(port, ErrorCode::InvalidArgument,
                        "the model was exported with a fixed batch of " + size + " ('" + port.name +
                            "'): say --batch " + size + ", or export it with dynamic_axes"));
    return fail(job_.error(ErrorCode::InvalidArgument,
                           job_.locations.contains("microbatch_size") ? "microbatch_size" : "batch_size",
                           "the model was exported with a fixed batch of " + size + " (input '" + port.name +
                               "'): set microbatch_size: " + size + ", or export it with dynamic_axes" +
                               (symbol_.empty() ? "" : "; if that axis is not the batch, " + naming(port))));
  }

  const Job& job_;
  std::vector<Port> ports_;
  std::string symbol_;
};

// The target without an axis of length 1 that the logits lack, where it has one more than labels have.
dag::Shape label_shape(const dag::Shape& logits, dag::Shape labels) {
  if (labels.size() + 1 != logits.size())
    return labels;  // a sample, which has no batch, against a microbatch
  for (const size_t axis : {size_t{0}, labels.size() - 1}) {
    if (labels.empty() || labels[axis] != 1 || logits[axis + 1] == 1) continue;
    labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(axis));
    break;
  }
  return labels;
}

}  // namespace

Result<Matching> match_inputs(const Job& job, const onnx::OnnxModel& model, const data::Dataset& dataset) {
  return Matcher(job, model).run(dataset);
}

Result<std::map<std::string, dag::Tensor>> input_values(const Job& job, const onnx::OnnxModel& model,
                                                        int64_t batch) {
  return Matcher(job, model).values(batch);
}

Result<std::optional<uint32_t>> fixed_batch(const Job& job, const onnx::OnnxModel& model) {
  return Matcher(job, model).fixed_batch();
}

Result<size_t> find_column(const Job& job, const data::Dataset& dataset, std::string_view path,
                           const std::string& name) {
  if (const auto column = dataset.find_column(name)) return *column;
  return fail(job.error(ErrorCode::NotFound, path,
                        "the data has no column '" + name + "'; it has " + list_columns(dataset)));
}

TensorSpec target_sample(const dag::LossSpec& loss, const TensorSpec& prediction, const TensorSpec& column) {
  TensorSpec sample = column;
  if (loss.type == dag::LossType::CrossEntropy) {
    if (sample.dtype != DType::I32) sample.dtype = DType::I64;
    sample.shape = label_shape(prediction.shape, sample.shape);
  } else if (dag::is_float(prediction.dtype)) {
    sample.dtype = prediction.dtype;
  }
  return sample;
}

}  // namespace weft::train
