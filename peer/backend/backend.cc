#include "peer/backend/backend.h"

namespace weft::peer {

namespace {

tl::unexpected<Error> lacks(const Backend& backend, std::string_view what, std::string_view format) {
  return fail(ErrorCode::Unsupported, std::string(backend.name()) + " backend: no " + std::string(what) +
                                          " in " + std::string(format) + ", only in f32");
}

}  // namespace

Status Backend::check(const Precision& precision) const {
  if (precision.compute != Arithmetic::F32) return lacks(*this, "arithmetic", to_string(precision.compute));
  if (precision.storage != dag::DType::F32) return lacks(*this, "storage", dag::to_string(precision.storage));
  if (precision.wire != dag::DType::F32) return lacks(*this, "sending", dag::to_string(precision.wire));
  return {};
}

Status Backend::need_dense(const Encoding& encoding) const {
  if (encoding.kind != Encoding::Kind::Dense)
    return fail(ErrorCode::Unsupported, std::string(name()) + " backend: downloads have no encoding " +
                                            std::to_string(static_cast<int>(encoding.kind)));
  if (encoding.floats != dag::DType::F32) return lacks(*this, "sending", dag::to_string(encoding.floats));
  return {};
}

Result<dag::Tensor> Backend::download(View source, const dag::TensorSpec& spec, dag::Layout layout) {
  WEFT_TRY(const auto download, begin_download(source, spec, layout, {}));
  return download->take();
}

Result<std::vector<double>> Backend::sums_of_squares(std::span<const TensorView> sources) {
  WEFT_TRY(const auto download, begin_sums_of_squares(sources));
  WEFT_TRY(const dag::Tensor sums, download->take());
  return to_doubles(sums);
}

Status Backend::admit(Bytes size, Bytes used) const {
  if (!limit_ || size <= *limit_ - used) return {};
  const auto mib = [](Bytes bytes) { return std::to_string((bytes.value + (1 << 20) - 1) >> 20) + " MiB"; };
  return fail(ErrorCode::ResourceExhausted, std::string(name()) + " backend: " + mib(size) +
                                                " more than the " + mib(used) +
                                                " taken are beyond the limit of " + mib(*limit_));
}

Status Backend::submit(const ReplayKey&, const StepContext& context,
                       const std::function<Status(const StepContext&)>& work) {
  return work(context);
}

}  // namespace weft::peer
