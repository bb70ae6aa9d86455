// What cuDNN says of a GPU, by a library of its own beside the program: only it needs cuDNN to start.
#pragma once

#include <string>

#include "base/result.h"

namespace weft::test {

// JSON, as tests/cuda/device_properties has it. Errors: Unsupported without the library, or cuDNN's own.
Result<std::string> device_properties(int device);

// JSON, as convolution_survey.h has it. Errors: Unsupported.
Result<std::string> device_convolutions(int device);

// The library's functions: 0, and `text` holds the JSON; else why not. `size` bytes, ended by a 0.
inline constexpr const char *kPropertiesSymbol = "weft_gpu_properties",
                            *kConvolutionsSymbol = "weft_gpu_convolutions";
using PropertiesFunction = int (*)(int device, char* text, int size);

}  // namespace weft::test
