#include "tests/onnx/operator_parts.h"

namespace weft::onnx::testing {
namespace {

// A line: operator, operator set, operands, "->", results (y, or - for one left out), attributes. An operand
// is absent (-), a type and shape, or these with values, which the import then knows. Operand 0, integers and
// truth values are inputs of the model; floats behind them are parameters.
constexpr char kLines[] = R"(
Abs 13 f32[3,4,5] -> y
Acos 7 f32[3] -> y
Acosh 9 f32[3] -> y
Add 14 f32[3,4,5] f32[5] -> y
AffineGrid 20 f32[2,2,3] i64[4]=2,3,4,5 -> y align_corners=1
AffineGrid 20 f32[2,3,4] i64[5]=2,3,2,4,5 -> y
And 7 bool[3,4] bool[3,4] -> y
ArgMax 13 f32[2,2] -> y axis=1 keepdims=1 select_last_index=1
ArgMin 13 f32[2,2] -> y axis=1 keepdims=1 select_last_index=1
Asin 7 f32[3] -> y
Asinh 9 f32[3] -> y
Atan 7 f32[3] -> y
Atanh 9 f32[3] -> y
Attention 23 f32[1,2,4,8] f32[1,2,6,8] f32[1,2,6,8] bool[4,9] f32[1,2,3,8] f32[1,2,3,8] -> yyyy is_causal=1 softcap=2.0 scale=0.5
Attention 24 f32[1,4,16] f32[1,6,8] f32[1,6,8] - - - i64[1]=5 -> y q_num_heads=4 kv_num_heads=2 qk_matmul_output_mode=1
AveragePool 11 f32[1,1,4,4] -> y ceil_mode=1 kernel_shape=[3,3] strides=[2,2]
AveragePool 11 f32[1,1,5,5] -> y auto_pad="SAME_UPPER" kernel_shape=[3,3] strides=[2,2]
AveragePool 11 f32[1,1,5,5] -> y count_include_pad=1 kernel_shape=[5,5] pads=[2,2,2,2]
BatchNormalization 15 f32[2,3,4,5] f32[3] f32[3] f32[3] f32[3] -> yyy epsilon=0.01 training_mode=1
Bernoulli 15 f32[10] -> y dtype=11
Bernoulli 15 f32[10] -> y seed=0.0
BitShift 11 u16[3] u16[3]=1,2,3 -> y direction="LEFT"
BitwiseAnd 18 i32[3] i32[3]=1,2,3 -> y
BitwiseNot 18 i32[3] -> y
BitwiseOr 18 i32[3] i32[3]=1,2,3 -> y
BitwiseXor 18 i32[3] i32[3]=1,2,3 -> y
BitCast 26 i32[2]=1,1065353216 -> y to=1
BlackmanWindow 17 i32[]=10 -> y periodic=0
Cast 13 u16[3,4] -> y to=1
CastLike 15 u16[3,4] f32[1] -> y
CausalConvWithState 27 f32[2,3,5] f32[3,1,4] f32[3] f32[2,3,3] -> yy activation="silu"
Ceil 13 f32[2] -> y
Celu 12 f32[3,3,3,1] -> y alpha=2.0
CenterCropPad 18 f32[3,5,4] i64[2]=4,6 -> y axes=[1,2]
Clip 13 f32[3] f32[]=-1.0 f32[]=1.0 -> y
Col2Im 18 f32[1,5,5] i64[2]=5,5 i64[2]=1,5 -> y
Col2Im 18 f32[1,8,4] i64[2]=5,5 i64[2]=2,2 -> y dilations=[1,1] pads=[0,0,0,0] strides=[2,2]
Compress 11 f32[3,2] bool[2]=0,1 -> y axis=1
Concat 13 f32[2] f32[2] -> y axis=0
Constant 13 -> y value=f32[2]:0.5,1.5
Constant 13 -> y value_ints=[1,2]
ConstantOfShape 9 i64[1]=0 -> y value=i32[1]:0
Conv 11 f32[1,1,5,5] f32[1,1,3,3] -> y auto_pad="SAME_LOWER" kernel_shape=[3,3] strides=[2,2]
Conv 11 f32[1,1,7,5] f32[1,1,3,3] -> y kernel_shape=[3,3] pads=[1,0,1,0] strides=[2,2]
ConvInteger 10 u8[1,1,3,3] u8[1,1,2,2]=1,1,1,1 u8[]=1 -> y pads=[1,1,1,1]
ConvTranspose 11 f32[1,1,3,3] f32[1,2,3,3] -> y auto_pad="SAME_UPPER" strides=[2,2]
ConvTranspose 11 f32[1,1,3,3] f32[1,2,3,3] -> y kernel_shape=[3,3] output_padding=[1,1] output_shape=[10,8] strides=[3,2]
ConvTranspose 11 f32[1,1,3,3] f32[1,2,3,3] -> y pads=[1,2,1,2] strides=[3,2]
Cos 7 f32[3] -> y
Cosh 9 f32[3] -> y
CumProd 26 f32[2,5] i64[]=1 -> y exclusive=1 reverse=1
CumSum 14 f64[5] i32[]=0 -> y exclusive=1 reverse=1
DFT 17 f32[1,10,10,2] -> y axis=1 inverse=1
DeformConv 19 f32[1,1,3,3] f32[1,1,2,2] f32[1,8,2,2] f32[1] f32[1,4,2,2] -> y kernel_shape=[2,2] pads=[0,0,0,0]
DepthToSpace 13 f32[1,8,2,3] -> y blocksize=2 mode="CRD"
DequantizeLinear 13 u8[4] f32[]=2.0 u8[]=128 -> y
DequantizeLinear 21 i8[4,6] f32[4,2] i8[4,2] -> y axis=1 block_size=3
Det 11 f32[2,2] -> y
Div 14 f32[2] f32[2] -> y
Dropout 10 f32[3,4] -> yy ratio=0.5
Dropout 11 f32[3,4,5] -> y ratio=0.2000
Dropout 13 f32[3,4,5] f32[]=0.5 bool[]=1 -> yy seed=0
DynamicQuantizeLinear 11 f32[6] -> yyy
Einsum 12 f64[5] f64[5] -> y equation="i,i"
Elu 6 f32[3] -> y alpha=2.0
Equal 13 i32[3,4,5] i32[5]=-6,-3,-8,-17,1 -> y
Erf 13 f32[3] -> y
Exp 13 f32[3] -> y
Expand 13 f32[3,1] i64[2]=3,4 -> y
EyeLike 9 i32[4,5] -> y dtype=1 k=1
Flatten 13 f32[2,3,4,5] -> y axis=0
Floor 13 f32[3] -> y
GRU 14 f32[1,3,3] f32[1,9,3] f32[1,9,3] f32[1,18] -> yy hidden_size=3
GRU 14 f32[3,1,2] f32[1,18,2] f32[1,18,6] -> yy hidden_size=6 layout=1
GRU 7 f32[4,2,3] f32[2,9,3] f32[2,9,3] f32[2,18] i32[2]=4,2 f32[2,2,3] -> yy hidden_size=3 direction="bidirectional" linear_before_reset=1 activations=["Sigmoid","Tanh","Sigmoid","Tanh"] clip=3.0
Gather 13 f32[3,3] i64[1,2]=0,2 -> y axis=1
GatherElements 13 f32[2,2] i64[2,2]=0,0,1,0 -> y axis=1
GatherND 13 i32[2,2,2] i64[2,1]=1,0 -> y batch_dims=1
Gelu 20 f32[3,4] -> y approximate="tanh"
Gemm 13 f32[4,3] f32[5,4] f32[1,5] -> y alpha=0.25 beta=0.3499 transA=1 transB=1
GlobalAveragePool 1 f32[1,1,3,3] -> y
GlobalLpPool 7 f32[1,2,3,3] -> y p=2
GlobalMaxPool 1 f32[1,1,3,3] -> y
Greater 13 f32[3,4,5] f32[5] -> y
GreaterOrEqual 16 f32[3,4,5] f32[5] -> y
GridSample 16 f32[1,1,4,4] f32[1,6,6,2] -> y align_corners=0 mode="bilinear" padding_mode="zeros"
GridSample 20 f32[1,1,3,4,4] f32[1,2,3,3,3] -> y align_corners=1 mode="nearest" padding_mode="border"
GridSample 20 f32[1,1,4,4] f32[1,3,3,2] -> y align_corners=0 mode="cubic" padding_mode="reflection"
GroupNormalization 18 f32[2,4,3] f32[2] f32[2] -> y num_groups=2
GroupNormalization 21 f32[2,4,3] f32[4] f32[4] -> y epsilon=0.01 num_groups=2 stash_type=1
HammingWindow 17 i32[]=10 -> y periodic=0
HannWindow 17 i32[]=10 -> y periodic=0
HardSigmoid 6 f32[3] -> y alpha=0.5 beta=0.6000
HardSwish 14 f32[3,4,5] -> y
Hardmax 13 f32[3,4,5] -> y axis=0
Identity 16 f32[1,1,2,2] -> y
InstanceNormalization 6 f32[2,3,4,5] f32[3] f32[3] -> y epsilon=0.01
IsInf 10 f32[6] -> y detect_negative=0
IsInf 10 f32[6] -> y detect_positive=0
IsNaN 13 f32[4] -> y
LRN 13 f32[5,5,5,5] -> y alpha=0.0001 beta=0.5 bias=2.0 size=3
LSTM 14 f32[1,2,4] f32[1,12,4] f32[1,12,3] f32[1,24] i32[2]=1,1 f32[1,2,3] f32[1,2,3] f32[1,9] -> yy hidden_size=3
LSTM 14 f32[3,1,2] f32[1,28,2] f32[1,28,7] -> yy hidden_size=7 layout=1
LSTM 7 f32[4,2,3] f32[2,12,3] f32[2,12,3] f32[2,24] i32[2]=4,2 f32[2,2,3] f32[2,2,3] f32[2,9] -> yyy hidden_size=3 direction="bidirectional" input_forget=1 activation_alpha=[0.5] activation_beta=[0.5] activations=["HardSigmoid","Tanh","Tanh","Sigmoid","Tanh","Tanh"]
LayerNormalization 17 f32[2,3,5] f32[5] f32[5] -> yyy axis=2 epsilon=0.1000
LeakyRelu 16 f32[3] -> y alpha=0.1000
Less 13 f32[3,4,5] f32[5] -> y
LessOrEqual 16 f32[3,4,5] f32[5] -> y
LinearAttention 27 f32[2,3,8] f32[2,3,4] f32[2,3,6] f32[2,2,2,3] f32[2,3,2] f32[2,3,2] -> yy kv_num_heads=2 q_num_heads=4 scale=0.5
LinearAttention 27 f32[1,2,6] f32[1,2,6] f32[1,2,4] - f32[1,2,6] -> yy chunk_size=64 kv_num_heads=2 q_num_heads=2 update_rule="gated"
Log 13 f32[2] -> y
LogSoftmax 13 f32[3,4,5] -> y axis=0
LpNormalization 7 f32[2,3] -> y axis=1 p=2
LpPool 18 f32[1,2,5,5] -> y kernel_shape=[2,2] pads=[1,0,1,0] p=2 strides=[2,2] dilations=[1,1] ceil_mode=1
MatMul 13 f32[3,4] f32[4,3] -> y
MatMulInteger 10 u8[4,3] u8[3,2]=1,4,2,5,3,6 u8[1]=12 u8[1]=0 -> y
Max 13 f32[3] f32[3] f32[3] -> y
MaxPool 12 f32[1,1,4,4] -> y ceil_mode=1 kernel_shape=[3,3] strides=[2,2]
MaxPool 12 f32[1,1,4,4] -> y dilations=[2,2] kernel_shape=[2,2] strides=[1,1]
MaxPool 12 f32[1,1,5,5] -> yy kernel_shape=[2,2] storage_order=1 strides=[2,2]
MaxUnpool 11 f32[1,1,2,2] i64[1,1,2,2]=5,7,13,15 i64[4]=1,1,5,5 -> y kernel_shape=[2,2] strides=[2,2]
Mean 13 f32[3] f32[3] f32[3] -> y
MeanVarianceNormalization 13 f32[3,3,3,1] -> y
MelWeightMatrix 17 i32[]=8 i32[]=64 i32[]=8192 f32[]=0.0 f32[]=4096.0 -> y
Min 13 f32[3] f32[3] f32[3] -> y
Mish 18 f32[3,4] -> y
Mod 13 i64[6] i64[6]=2,-3,8,-2,3,5 -> y fmod=1
Mul 14 f32[3] f32[3] -> y
Multinomial 7 f32[2,5] -> y dtype=6 sample_size=3 seed=1.0
Neg 13 f32[2] -> y
NegativeLogLikelihoodLoss 13 f32[3,5] i64[3]=10,4,3 f32[5] -> y ignore_index=10 reduction="sum"
NonMaxSuppression 11 f32[1,6,4]=0.5,0.5,1.0,1.0,0.5,0.6000,1.0,1.0,0.5,0.4000,1.0,1.0,0.5,10.5,1.0,1.0,0.5,10.6,1.0,1.0,0.5,100.5,1.0,1.0 f32[1,1,6]=0.9,0.75,0.6,0.95,0.5,0.3 i64[1]=3 f32[1]=0.5 f32[1]=0.0 -> y center_point_box=1
NonZero 13 bool[2,2]=1,0,1,1 -> y
Not 1 bool[3,4] -> y
OneHot 11 i64[3] i64[1]=4 f32[2]=0.5,1.5 -> y axis=1
OneHot 11 i64[3]=0,-7,-8 f32[]=10.0 f32[2] -> y axis=1
Or 7 bool[3,4] bool[3,4] -> y
PRelu 16 f32[3,4,5] f32[5] -> y
Pad 13 f32[1,3,4,5] i64[8]=0,0,1,3,0,0,2,4 f32[]=1.2000 -> y mode="constant"
Pad 19 f32[1,3,4] i64[4]=1,0,2,1 - i64[2]=1,2 -> y mode="wrap"
Pow 15 f32[3] f32[]=2.0 -> y
QLinearConv 10 u8[1,1,7,7] f32[]=0.0036 u8[]=132 u8[1,1,1,1]=0 f32[1] u8[1]=255 f32[]=0.0016 u8[]=123 -> y
QLinearMatMul 10 u8[2,4] f32[1] u8[1]=113 u8[4,3]=152,51,244,60,26,255,0,127,246,127,254,247 f32[1] u8[1]=114 f32[1] u8[1]=118 -> y
QuantizeLinear 13 f32[6] f32[]=2.0 u8[]=128 -> y
QuantizeLinear 21 f32[4,6] f32[4,2] i8[4,2] -> y axis=1 block_size=3 output_dtype=3 precision=1 saturate=1
RMSNormalization 23 f32[2,3,4] f32[4] -> y axis=-1 epsilon=0.01 stash_type=1
RNN 14 f32[1,3,3] f32[1,5,3] f32[1,5,5] f32[1,10] -> yy hidden_size=5
RNN 14 f32[3,1,2] f32[1,4,2] f32[1,4,4] -> yy hidden_size=4 layout=1
RNN 7 f32[4,2,3] f32[2,3,3] f32[2,3,3] f32[2,6] i32[2]=4,2 f32[2,2,3] -> yy hidden_size=3 direction="bidirectional" activations=["LeakyRelu","Affine"] activation_alpha=[0.5,0.5] activation_beta=[0.1]
RandomNormal 7 -> y dtype=1 mean=0.5 scale=2.0 seed=1.0 shape=[2,3]
RandomNormalLike 7 f32[2,3] -> y dtype=1 mean=0.5 scale=2.0 seed=1.0
RandomUniform 7 -> y dtype=1 high=2.0 low=-1.0 seed=1.0 shape=[2,3]
RandomUniformLike 7 f32[2,3] -> y dtype=1 high=2.0 low=-1.0 seed=1.0
Range 11 f32[]=1.0 f32[]=5.0 f32[]=2.0 -> y
Reciprocal 13 f32[2] -> y
ReduceL1 13 f32[3,2,2] -> y axes=[2] keepdims=0
ReduceL2 13 f32[3,2,2] -> y axes=[2] keepdims=0
ReduceLogSum 6 f32[3,4,5] -> y axes=[2,1] keepdims=0
ReduceLogSumExp 13 f64[3,2,2] -> y axes=[1] keepdims=0
ReduceMax 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceMax 18 f32[3,2,2] i64[1]=1 -> y keepdims=0 noop_with_empty_axes=1
ReduceMean 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceMean 18 f32[3,2,2] i64[1]=1 -> y keepdims=0 noop_with_empty_axes=1
ReduceMin 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceProd 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceSum 13 f32[3,2,2] i64[0]= -> y keepdims=1 noop_with_empty_axes=1
ReduceSumSquare 13 f32[3,2,2] -> y axes=[1] keepdims=0
Relu 14 f32[3,4,5] -> y
Reshape 14 f32[0,3,4] i64[3]=3,4,0 -> y allowzero=1
Resize 10 f32[1,1,4,4] f32[4]=1.0,1.0,2.0,0.5 -> y mode="nearest"
Resize 13 f32[1,1,4,4] - - i64[4]=1,1,8,8 -> y coordinate_transformation_mode="half_pixel" mode="nearest" nearest_mode="ceil"
Resize 13 f32[1,1,4,4] - f32[4]=1.0,1.0,0.8,0.8 -> y cubic_coeff_a=-0.5 exclude_outside=1 mode="cubic"
Resize 13 f32[1,1,4,4] f32[8]=0.0,0.0,0.4,0.6,1.0,1.0,0.6,0.8 - i64[4]=1,1,3,3 -> y coordinate_transformation_mode="tf_crop_and_resize" extrapolation_value=10.0 mode="linear"
Resize 19 f32[1,1,4,4] - - i64[2]=8,6 -> y axes=[2,3] antialias=1 mode="linear" keep_aspect_ratio_policy="not_larger"
ReverseSequence 10 f32[4,4] i64[4]=1,2,3,4 -> y batch_axis=0 time_axis=1
RoiAlign 16 f32[1,1,10,10] f32[3,4] i64[3]=0,0,0 -> y coordinate_transformation_mode="output_half_pixel" output_height=5 output_width=5 sampling_ratio=2 spatial_scale=1.0
RotaryEmbedding 23 f32[2,2,3,4] f32[5,2] f32[5,2] i64[2,3]=0,1,2,0,1,2 -> y interleaved=1
RotaryEmbedding 23 f32[2,3,8] f32[2,3,1] f32[2,3,1] -> y num_heads=2 rotary_embedding_dim=2
Round 11 f32[15] -> y
STFT 17 f32[1,128,1] i64[]=8 - i64[]=16 -> y
STFT 17 f32[1,128,1] i64[]=8 f32[16] -> y
Scatter 10 f32[1,5] i64[1,2]=1,3 f32[1,2] -> y axis=1
ScatterElements 16 f32[1,5] i64[1,2]=1,1 f32[1,2] -> y axis=1 reduction="add"
ScatterND 16 f32[4,4,4] i64[2,1]=0,0 f32[2,4,4] -> y reduction="add"
Selu 6 f32[3] -> y alpha=2.0 gamma=3.0
Shape 15 f32[3,4,5] -> y end=2 start=1
Shrink 9 f32[5] -> y bias=1.5 lambd=1.5
Sigmoid 13 f32[3] -> y
Sign 13 f32[11] -> y
SimplifiedLayerNormalization 17 f32[2,4] f32[4] -> yy axis=-1 epsilon=0.01
Sin 7 f32[3] -> y
Sinh 9 f32[3] -> y
Size 13 f32[2,3] -> y
Slice 13 f32[20,10,5] i64[1]=1 i64[1]=1000 i64[1]=1 i64[1]=1 -> y
Slice 9 f32[4,5] -> y axes=[0,1] ends=[3,4] starts=[1,0]
Softmax 11 f32[3,4,5] -> y axis=1
Softmax 13 f32[3,4,5] -> y axis=0
SoftmaxCrossEntropyLoss 13 f32[3,5,2] i64[3,2] f32[5] -> yy ignore_index=1 reduction="none"
SoftmaxCrossEntropyLoss 13 f32[3,5] i64[3]=10,4,3 f32[5] -> yy ignore_index=10 reduction="sum"
Softplus 1 f32[3] -> y
Softsign 1 f32[3] -> y
SpaceToDepth 13 f32[1,1,4,6] -> y blocksize=2
SpaceToDepth 13 f32[1,2,4,4] -> y blocksize=2
Split 13 f32[0] i64[3]=0,0,0 -> yyy
Split 13 f32[6] -> yyy axis=0
Split 18 f32[7,2] -> yyy axis=0 num_outputs=3
Sqrt 13 f32[3] -> y
Squeeze 13 f32[1,3,1,5] i64[1]=-2 -> y
Sub 14 f32[3] f32[3] -> y
Sum 13 f32[3] f32[3] f32[3] -> y
Swish 24 f32[3,4] -> y alpha=1.5
Tan 7 f32[3] -> y
Tanh 13 f32[3] -> y
TensorScatter 24 f32[2,4,3] f32[2,1,3] i64[2]=1,2 -> y axis=1 mode="circular"
ThresholdedRelu 10 f32[5] -> y alpha=2.0
Tile 13 f32[2,2] i64[2]=2,2 -> y
TopK 11 f32[3,4] i64[1]=3 -> yy axis=1 largest=0 sorted=1
TopK 9 f32[3,4] -> yy axis=1 k=2
Transpose 13 f32[2,3,4] -> y perm=[0,1,2]
Trilu 14 i64[3,0,5] i64[]=6 -> y upper=0
Unique 11 f32[3,3]=1.0,0.0,0.0,1.0,0.0,0.0,2.0,3.0,4.0 -> yyyy axis=0 sorted=1
Unsqueeze 11 f32[3,4,5] -> y axes=[3]
Unsqueeze 13 f32[1,3,1,5] i64[1]=-2 -> y
Upsample 7 f32[1,1,2,2] -> y mode="nearest" scales=[1.0,1.0,2.0,2.0]
Upsample 9 f32[1,1,2,2] f32[4]=1.0,1.0,2.0,3.0 -> y mode="nearest"
Where 16 bool[2,2] f32[2,2] f32[2,2] -> y
Xor 7 bool[3,4] bool[3,4] -> y
com.microsoft.Attention 17 f32[2,3,8] f32[8,24] f32[24] i32[2,3] - f32[1,2,3,3] -> y num_heads=2 unidirectional=1 scale=0.5 mask_filter_value=-100.0
com.microsoft.BiasAdd 17 f32[1,4,2] f32[2] f32[1,4,2] -> y
com.microsoft.BiasGelu 17 f32[2,4] f32[4] -> y
com.microsoft.EmbedLayerNormalization 17 i32[2,3] i32[2,3] f32[10,4] f32[5,4] f32[2,4] f32[4] f32[4] - i32[2,3] -> y-y epsilon=0.01
com.microsoft.FastGelu 17 f32[2,4] f32[4] -> y
com.microsoft.FusedConv 17 f32[1,1,5,5] f32[2,1,3,3] f32[2] f32[1,2,3,3] -> y activation="LeakyRelu" activation_params=[0.1]
com.microsoft.FusedGemm 17 f32[2,3] f32[3,4] f32[4] -> y activation="LeakyRelu" activation_alpha=0.1
com.microsoft.FusedMatMul 17 f32[3,2] f32[3,4] -> y alpha=0.5 transA=1
com.microsoft.Gelu 17 f32[2,4] -> y
com.microsoft.GatherBlockQuantized 17 u8[3,8]=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24 i64[2,2] f32[3,1]=1.0,2.0,0.5 -> y bits=4 block_size=16 gather_axis=0 quantize_axis=1
com.microsoft.GroupQueryAttention 17 f32[1,3,16] - - - - i32[1]=2 i32[]=3 -> y kv_num_heads=1 num_heads=2
com.microsoft.GroupQueryAttention 17 f32[1,3,8] f32[1,3,4] f32[1,3,4] - - i32[1]=2 i32[]=3 f32[5,2] f32[5,2] -> yyy do_rotary=1 kv_num_heads=1 num_heads=2 rotary_interleaved=1 softcap=2.0
com.microsoft.LayerNormalization 17 f32[2,4] f32[4] f32[4] -> yyy axis=-1 epsilon=0.01
com.microsoft.MatMulNBits 17 f32[2,3,16] u8[2,1,8]=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 f32[2,1]=0.5,0.25 -> y K=16 N=2 bits=4 block_size=16
com.microsoft.MatMulNBits 17 f32[3,4] u8[2,1,4]=1,2,3,4,5,6,7,8 f32[2,1]=0.5,0.25 u8[2,1]=100,7 - f32[2] -> y K=4 N=2 bits=8 block_size=4
com.microsoft.MultiHeadAttention 17 f32[2,3,2,3,4] -> y num_heads=2 unidirectional=1
com.microsoft.MultiHeadAttention 17 f32[2,3,8] f32[2,4,8] f32[2,4,8] f32[24] i32[2,4] f32[1,2,3,4] -> yyy num_heads=2
com.microsoft.QuickGelu 17 f32[2,4] -> y alpha=1.5
com.microsoft.RotaryEmbedding 17 f32[1,3,8] i64[1]=0 f32[5,2] f32[5,2] -> y interleaved=1
com.microsoft.SimplifiedLayerNormalization 17 f32[2,4] f32[4] -> yy axis=-1 epsilon=0.01
com.microsoft.SkipLayerNormalization 17 f32[2,3,4] f32[2,3,4] f32[4] f32[4] f32[4] -> yyyy epsilon=0.01
com.microsoft.SkipSimplifiedLayerNormalization 17 f32[2,3,4] f32[2,3,4] f32[4] f32[4] -> y-yy epsilon=0.01
com.microsoft.TransposeMatMul 17 f32[3,2] f32[3,4] -> y alpha=0.5 transA=1
)";

}  // namespace

std::string_view operator_lines() { return kLines; }

}  // namespace weft::onnx::testing
