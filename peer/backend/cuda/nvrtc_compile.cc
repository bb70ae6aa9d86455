#include "peer/backend/cuda/nvrtc_compile.h"

#include <nvrtc.h>

#include <memory>

namespace weft::peer::cuda {
namespace {

struct Destroy {
  void operator()(nvrtcProgram program) const { nvrtcDestroyProgram(&program); }
};
using Program = std::unique_ptr<_nvrtcProgram, Destroy>;

Status check(nvrtcResult result, const char* call) {
  if (result == NVRTC_SUCCESS) return {};
  const ErrorCode code = result == NVRTC_ERROR_OUT_OF_MEMORY    ? ErrorCode::ResourceExhausted
                         : result == NVRTC_ERROR_INVALID_OPTION ? ErrorCode::Unsupported
                                                                : ErrorCode::Internal;
  return fail(code, std::string("NVRTC: ") + call + ": " + nvrtcGetErrorString(result));
}

Result<Program> make_program(const std::string& text) {
  std::vector<const char*> names, texts;
  for (const EmbeddedFile& file : embedded_files()) {
    names.push_back(file.name);
    texts.push_back(file.text);
  }
  nvrtcProgram program = nullptr;
  WEFT_TRY_STATUS(check(nvrtcCreateProgram(&program, text.c_str(), "fused.cu", static_cast<int>(names.size()),
                                           texts.data(), names.data()),
                        "nvrtcCreateProgram"));
  return Program(program);
}

std::string log_of(nvrtcProgram program) {
  size_t size = 0;
  if (nvrtcGetProgramLogSize(program, &size) != NVRTC_SUCCESS || size <= 1) return "nothing was said";
  std::string log(size, '\0');
  if (nvrtcGetProgramLog(program, log.data()) != NVRTC_SUCCESS) return "nothing was said";
  log.resize(size - 1);  // the zero at the end
  return log;
}

}  // namespace

Result<std::vector<char>> compile_to_cubin(std::span<const KernelSource> sources,
                                           const std::string& architecture) {
  std::string text;
  for (const KernelSource& source : sources) text += source.code + "\n";
  WEFT_TRY(const Program program, make_program(text));
  const std::string chip = "--gpu-architecture=" + architecture;
  // Nothing is contracted, and nothing is approximated, as in the kernels that are compiled beforehand.
  const char* options[] = {chip.c_str(), "--std=c++20", "--fmad=false"};
  const nvrtcResult compiled =
      nvrtcCompileProgram(program.get(), static_cast<int>(std::size(options)), options);
  if (const Status checked = check(compiled, "nvrtcCompileProgram"); !checked)
    return fail(checked.error().code,
                checked.error().message + " for " + architecture + ":\n" + log_of(program.get()));
  size_t size = 0;
  WEFT_TRY_STATUS(check(nvrtcGetCUBINSize(program.get(), &size), "nvrtcGetCUBINSize"));
  std::vector<char> code(size);
  WEFT_TRY_STATUS(check(nvrtcGetCUBIN(program.get(), code.data()), "nvrtcGetCUBIN"));
  return code;
}

}  // namespace weft::peer::cuda
