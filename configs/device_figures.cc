#include "configs/device_figures.h"

#include "configs/cluster.h"

namespace weft::configs {
namespace {

constexpr Range kFlops{0, 1e18, /*above_min=*/true};
constexpr Range kBytesPerSecond{0, 1e15, /*above_min=*/true};

}  // namespace

DeviceFigures read_figures(MapReader& reader, const std::string& path, Problems& problems,
                           const std::optional<DeviceFigures>& known) {
  DeviceFigures figures = known.value_or(DeviceFigures{});
  const auto figure = [&](std::string_view key, std::string_view hint) {
    return known ? reader.take(key) : reader.require(key, hint);
  };
  if (const Node* flops = figure("peak_flops", "as {fp32: 2.0e13}")) {
    MapReader peak(*flops, path + ".peak_flops", problems);
    if (const Node* fp32 = known ? peak.take("fp32") : peak.require("fp32", "operations a second, as 2.0e13"))
      figures.peak_fp32_flops = peak.parse_number(*fp32, "fp32", kFlops).value_or(1);
    if (const Node* tf32 = peak.take("tf32"))
      figures.peak_tf32_flops = peak.parse_number(*tf32, "tf32", kFlops);
    if (const Node* bf16 = peak.take("bf16"))
      figures.peak_bf16_flops = peak.parse_number(*bf16, "bf16", kFlops);
    peak.finish();
  }
  if (const Node* memory = figure("memory", "as 24GiB")) {
    const auto bytes = memory->kind == Node::Kind::Scalar ? parse_memory(memory->text) : std::nullopt;
    if (!bytes)
      reader.problem(memory->where,
                     "`" + reader.path_of("memory") + "` must be an amount, as 24GiB or 512MiB");
    figures.memory = bytes.value_or(Bytes{1});
  }
  if (const Node* rate = figure("memory_bandwidth", "bytes a second, as 9.0e11"))
    figures.memory_bandwidth = reader.parse_number(*rate, "memory_bandwidth", kBytesPerSecond).value_or(1);
  return figures;
}

}  // namespace weft::configs
