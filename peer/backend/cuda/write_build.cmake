# Writes OUTPUT, the functions of cuda_build.h. Run while building, whenever one of FILES has changed.
#   cmake -D OUTPUT=... -D FILES=a,b -D COMPILER="nvcc 13.0.88 -fmad=false" -D MACHINE_CODE=75,80 -D PTX=75 -P write_build.cmake
# COMPILER: what else decides the kernels' code, as text.
string(REPLACE "," ";" FILES "${FILES}")
set(digests "${COMPILER}")
foreach(file IN LISTS FILES)
  file(SHA256 ${file} digest)
  get_filename_component(name ${file} NAME)
  string(APPEND digests "\n${name} ${digest}")
endforeach()
string(SHA256 digest "${digests}")
string(SUBSTRING ${digest} 0 16 digest)

file(WRITE ${OUTPUT} "#include \"peer/backend/cuda/cuda_build.h\"

namespace weft::peer::cuda {
namespace {
constexpr int kMachineCode[] = {${MACHINE_CODE}}, kPtx[] = {${PTX}};
}  // namespace
std::span<const int> machine_code_built_in() { return kMachineCode; }
std::span<const int> ptx_built_in() { return kPtx; }
std::string_view code_digest() { return \"${digest}\"; }
}  // namespace weft::peer::cuda
")
