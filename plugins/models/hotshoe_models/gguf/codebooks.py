"""The codebooks of GGUF's types of one to three bits: lists of points, one of which a code names.

A point has 8 or 4 digits, the first of which counts least. Points are in the order of the numbers
that their digits write, so one bit for each possible number says which are in the list.
Source: the grids of ggml's types IQ1 to IQ3 (ggml-common.h).
"""

from __future__ import annotations

import base64
import zlib
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Codebook(NamedTuple):
    """A list of points.

    Attributes:
        values: Those of digits.
        digits: How many digits a point has.
        points: The bits, lowest first; compressed, in base 85.
    """

    values: tuple[int, ...]
    digits: int
    points: str


#: By the first type that has it. Values of IQ3_XXS are halves of the type's, digits of IQ1_S are 1
#: more.
CODEBOOKS = {
    "IQ1_S": Codebook(
        (0, 1, 2),
        8,
        "cwQ}1K}(!R7=CxE;dM-9V?RN1diSfb(^(PgE$L;EU0C#DLh=VZ*|bQ>IZZw%yXlwN6ha`hG?#HO$v6$G@ldv(umM"
        "k2dT8mb2WdTox*h^v8VtnDuD#8?@Vw9Syw7v(LR2?w<}y}3b9YJG^C&5*&qs>Nl?x;NhAB!%0hRecnsm$a2YwJ@;"
        "QqccSPG~@n#@N5uBY$^gNY22s7}?HYgoxmY#Y+!Ajh1yxWA4l1OzVO1-XRyWBes^wA;LAoBq<x!%nuPhFWp9`{&R"
        "@7DG%<XIwD^Is3Q$Jf@<B<<hd(0^?jzIHG8vQn*?-$Ub(LsHW&@kYNcQ%|}dP%c;av8KJU^mWiJv*28-WD<$YEG%"
        "#}+D!ES;XeDuFD(VlG#i@A4$V;H%7rH52w&LB_pg1xSvl=L<CZ@9?{WdkSxbxSuMq|l64F4MqT|O(RS}O@H(bLXv"
        "Hn!_OntvSw2GXTKiD_6XGLxujp0!)qyF+V=7Bv?g3oFy??D1-6?{(2le%HQrc>Le(m#@Cb_P%)g$;r#{<KcsUbe#"
        "9?p_<1{H>jE?+1SCIq;Fwj@yPMjA_U90?}vdY$)D1%>fQq-z{36HBT$I&mG*v%J#A~V%aSj@pZtCEAg}V1eou`2@"
        "uUxU_YQ=)6;l3U7EjmAKr#y2F0kdO91c}@u6ikZ68>90+)KINV7E3oVy0wcNC7Qg*Gnz$6Ckekcj5w;yQl$8BcV}"
        "uIeIA*;9XR~L2uzcrHYS+2)y-rqrtcg6e{stpn$cM#il(dTBx(R&0u-;P1DmAvG}u@dX;b%ns9v~6p49X^c}lqEM"
        "lIFjzJBbrp$X4T{{D_p5YV7e^~xM<^E7<_56qcAaL=FI+lT|4v2#Y&dpW2-Egd@Fdf5G@Dheeu*|v(bMFD;1sQ1",
    ),
    "IQ2_XXS": Codebook(
        (8, 25, 43),
        8,
        "cwTK%QLe-w2pkjpPZQsLFzEsO+52B*nL&L`x0AMl12|wmf9+#e@2Ks90jQ1!2Q6Tj_Y<X6AF&_w5$^yB7}8_EH3j"
        "CQEEW-3HH)x%qLwh6S%H#)Ry|5)7E}1@h{RDyMF7sVrF8DFG~IH@u}m5n74ROc%K}f3xi~(lU<%$yc_XG_7A=F~B"
        "kBURPyKERGYZ|EW+K6?^s=wntGu8tX{<#lNv&L;YgkDq6eO=&7Ri`9EwJTvFPrBgk$Z+AQQv3pw;rD0H0M>+HM&~"
        "?{Wc_LlR8l|XGsx>+X?^e6?MfO=c12XvCzyH-X-QG{Bm2#bDA&qD>C3U><h+S6(a",
    ),
    "IQ2_XS": Codebook(
        (8, 25, 43),
        8,
        "cwS9XQLe)v3`?Z&pGoa~KwAHqH12<uXFKq;Xe~4jjvcnv`mAT%kAK&i&&cNX{bV0u?luYCeuV+D<`HInST-#9t@g"
        "UY(|X4#LTQGL8zMpY!6`x_1T<~Fc#s7od_0R#8FI$iwq}7!e82P^daEsBts=CT$*$<jheuKP9@Y;b5(WAuwj8c5c"
        "{qugv&!COS-!Sqd&A!FLx@2E;*lot?14eiIf9V8WFRrrpHIaeuPlc(<%rhVuJI-kJ}RO7wicL1XEDX*R<on;875`"
        "TU!*+3djC&RVL|_~x5aq|%{7ViyZIgDoj1gnX}RE($MwbeP7T$H>CHl=p)0*;pm-G`kEm(rW_TY*f(klr1DkPlYQ"
        "41mF)z~7jIqaM_;2lwB}q=M(?#NySIKYmYW~zmxwU;+dPD9XPOvFS",
    ),
    "IQ2_S": Codebook(
        (8, 25, 43),
        8,
        "cwTK%(W)gO3~NE(74&~9%)Beu|NoVnREN9Et{l$jWRj+-?!Nr>o+~!<^_F|vt4vQ)D;}@A_x-Nv-tYrtfL2Shh;="
        "8cs9N^)05TD6B^MDf*}fK(`)b>xgg2ROjFhD%VXaS)PzbiHfIv52iI9pM2=7uMl%Oqp^)+(RDtivghgD=He4ph(7"
        "k>#>P_lv=<O&-sA=2Y4A&w*dR3^Q8Zx7SR*Wu`iEz_6#W>7;8G{@%<0;L@YHiCsTjJ2qZ1;HLH`KRRu_^b7YAcLZ"
        "LVatF_(BQ9N#1fr6Z_jXO9LmkG&_*Ib^v>%DmcULHA;L5w1U<2QE50!6Z*9Alq4FN{L#+18!jvmp&c7`yp?M_8%C"
        "uk{rGDyA&e-bf<+5TZp?EF;DgVi^5;|=IDpZzJ>&A4J32*NX9o`8J7~7JJK|d<%3aZ@<zjacv&uA2|cx~EvVoX1|"
        "yjC6",
    ),
    "IQ3_XXS": Codebook(
        (2, 6, 10, 14, 18, 22, 26, 31),
        4,
        "cwR+OF>b>!3_KDd5NL7+??R@auds*i>5l|YL0-|Z&+Hu;w`W+E$m8)Sudnb1+<V-@7uf3Y!hvzb0AaXbE)(|yXnX"
        "`F7T^m^IePSU8W0|t?BP721<W^WxRnZV<q1BLCA17j|5Sf`WZl!^h-oDGHAz|r8_5Q{sd1riX#^gf`Xl>26t_`MT"
        "~!I2jO;S6f<-nmb&)a7_KoM8nfk_Yc6K}IglkP3If*dhy{9aF*)G{C&^RrxN^LB~b@r-MOiK~<ePkD<`Ob<Fdy(r"
        "jw5fu(`I7sw^S^8*t1+9d<h1L_jQ^|qn?d*m7P=Jn",
    ),
    "IQ3_S": Codebook(
        (1, 3, 5, 7, 9, 11, 13, 15),
        4,
        "cwRkF!Ab)$5PdUDAe&RNtawe+3U$9Cm3mMwMG${yTPn1@ZSey{D}wz=CsCZkka=(B&6|8ZPwl5O$IIzHc_jI`OX1"
        "|u*kta#84~SUX&BVu*1jX#?7$H4h1Lkb<=H%9#qtoiVS@#of;5rj*ldC}(!7IPYF}j;8Y5Pko#9yc^V7lfX1F%{S"
        "u4sP;nuuEd&Qj-%GjWpDLnHm16j~Z5z)!WnJfYFE&VH7?!5znmLzIbaSjJML|A*HsuI8^iqEjfs5Tr-EN+5~!aBH"
        "hGO<bV30oS3yfdlr27V}VZ*@wb3La&_1Y{MGAQ&b4URX*4v0Z2nwlu(Vv@J+-5h~f0M^!;rvqoP~HGs7izK~v`5P"
        "2?JH1r4sn@W;ab^E{82$RVRggxe3w+p?d_|iWsK2rIlIv{nU{GR`(4g3JQ#wQ>",
    ),
}


@lru_cache
def points_of(name: str) -> Tensor:
    """Return the points of a codebook [points, digits] int8."""
    values, digits, packed = CODEBOOKS[name]
    held = torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(packed))), dtype=torch.uint8)
    numbers = ((held[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1).flatten().nonzero()
    places = len(values) ** torch.arange(digits)
    return torch.tensor(values, dtype=torch.int8)[numbers // places % len(values)]


@lru_cache
def signs_of(width: int) -> Tensor:
    """Return the signs of 8 numbers, by a code of 7 or 8 bits: [2**width, 8] int8.

    A bit that is set is a minus. The eighth of 7 bits makes the number of minuses even.
    """
    held = (torch.arange(2**width)[:, None] >> torch.arange(8)) & 1
    if width == 7:
        held[:, 7] = held.sum(1) % 2
    return (1 - 2 * held).to(torch.int8)
