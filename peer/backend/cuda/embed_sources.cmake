# Sets `embedded_sources` to a file, written now and again whenever one of the texts changes, that defines
# embedded_files() (nvrtc_compile.h): the files of kernels/ that sources compiled at run time may include.
set(embedded_sources ${CMAKE_CURRENT_BINARY_DIR}/generated/embedded_files.cc)
set(embedded_texts "")
foreach(name launch.h device_code.h math.cuh elements.cuh random.cuh)
  set(path ${PROJECT_SOURCE_DIR}/peer/backend/cuda/kernels/${name})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} text)
  string(APPEND embedded_texts "    {\"peer/backend/cuda/kernels/${name}\", R\"embedded(${text})embedded\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${embedded_sources} CONTENT [[
#include "peer/backend/cuda/nvrtc_compile.h"

namespace weft::peer::cuda {
namespace {
constexpr EmbeddedFile kFiles[] = {
@embedded_texts@};
}  // namespace
std::span<const EmbeddedFile> embedded_files() { return kFiles; }
}  // namespace weft::peer::cuda
]] @ONLY)
