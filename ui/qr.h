// An address as a QR code, for a terminal and a phone's camera. The only door to libqrencode.
#pragma once

#include <string>

#include "base/result.h"

namespace weft::ui {

// Lines of half blocks, dark on light with a margin, whatever the terminal's colours are. ResourceExhausted:
// the text is too long for one.
Result<std::string> qr_code(const std::string& text);

}  // namespace weft::ui
